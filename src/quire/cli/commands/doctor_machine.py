"""Machine checks of `quire doctor`. Every check yields findings; none changes anything or uses the network."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from quire import __version__
from quire.config import Config, home_folder
from quire.devices import base as devices
from quire.devices.facts import DeviceFacts, available, device_facts, host_device, resolve_device
from quire.types.formats import AUTO

State = Literal["ok", "note", "broken"]  # fine; can be improved; must be fixed

# Required packages, and the packages of each extra. A test compares both with pyproject.toml.
PACKAGES = (
    *("numpy", "tokenizers", "jinja2", "llguidance", "huggingface_hub", "msgspec", "starlette", "uvicorn", "uvloop"),
    *("httptools", "pyzmq", "httpx", "typer", "rich", "prompt_toolkit", "pyyaml", "prometheus-client"),
)
EXTRAS = {
    **{facts.name: facts.packages for facts in map(device_facts, available()) if facts.packages},
    "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}
EXTRA_USES = {"cuda": "NVIDIA GPUs", "otel": "traces for OpenTelemetry"}
NAMESAKE = "quire"  # another project's distribution with our import name
LOW_DISK = 2 * 10**9  # bytes; less than a small model needs
PROC = Path("/proc")
GPU_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    value: str
    state: State = "ok"
    remedy: str = ""


def check_machine(config: Config) -> Iterator[Finding]:
    """Run all checks that need no network."""
    yield from check_software()
    yield from check_cpu()
    yield from check_memory(config)
    yield from check_disk(config)
    yield from check_gpu()
    yield from check_packages()


def check_software() -> Iterator[Finding]:
    """Versions of Quire, Python and the operating system."""
    yield Finding("software", "quire", __version__)
    if other := installed(NAMESAKE):
        value = f"another package, {NAMESAKE} {other}, is installed with the same import name"
        remedy = f"pip uninstall {NAMESAKE}, then reinstall Quire (its package is quire-llm)."
        yield Finding("software", "name clash", value, "note", remedy)
    yield Finding("software", "python", f"{platform.python_implementation()} {platform.python_version()}")
    yield Finding("software", "system", f"{platform.system()} {platform.release()} {platform.machine()}")


def check_cpu(proc: Path = PROC) -> Iterator[Finding]:
    """The CPU, and the kernels and threads that Quire will use on it."""
    yield Finding("cpu", "model", cpu_model(proc))
    device = devices.open(host_device())
    said = device.describe()
    yield Finding("cpu", "features", " ".join(said.features) or "unknown without the native module")
    state: State = "broken" if said.is_broken else "ok" if said.kernels else "note"
    kernels = f"{said.kernels or 'numpy references, many times slower'} ({said.why})"
    yield Finding("cpu", "kernels", kernels, state, said.remedy)
    is_limited = said.num_threads < said.num_processors and said.kernels
    why = ", limited by CPU affinity or a control group" if is_limited else ""
    yield Finding("cpu", "threads", f"{said.num_threads} of {said.num_processors} processors{why}")
    yield Finding("cpu", "KV formats", kv_formats(device.facts()))
    yield Finding("cpu", "KV windows", kv_windows(device.facts()))


def kv_formats(facts: DeviceFacts) -> str:
    """Values of kv_dtype that a device takes."""
    default, *others = facts.kv_formats
    return ", ".join((f"{default} (default)", *others))


def kv_windows(facts: DeviceFacts) -> str:
    """What happens to the KV of tokens that a layer's window has passed."""
    return "tokens behind a layer's window are freed" if facts.frees_windows else "layers with a window keep all tokens"


def cpu_model(proc: Path) -> str:
    """Return the CPU's name as the system reports it."""
    for line in _lines(proc / "cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def check_memory(config: Config, proc: Path = PROC) -> Iterator[Finding]:
    """The machine's memory, its cgroup limit, and the budget for models."""
    allowed, free = devices.host_bytes(), devices.open(host_device()).facts().memory.free_bytes
    lines = (line.split() for line in _lines(proc / "meminfo"))
    total = next((int(words[1]) * 1024 for words in lines if words[:1] == ["MemTotal:"]), allowed)
    yield Finding("memory", "machine", gb(total) + ("" if free is None else f", {gb(free)} available"))
    if allowed < total:
        yield Finding("memory", "limit", f"{gb(allowed)}, set by a control group")
    share = config.cache.memory_share
    yield Finding("memory", "budget", f"{gb(allowed * share)} for models (memory_share {share:g})")


def check_disk(config: Config) -> Iterator[Finding]:
    """The model folder: is it writable, and is there free space?"""
    home = home_folder(config)
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "Set another folder with --home or QUIRE_HOME, or make this one writable."
        yield Finding("disk", "home", f"{home} is not writable", "broken", remedy)
        return
    usage = shutil.disk_usage(existing)
    is_low = usage.free < LOW_DISK
    remedy = "Free disk space (`quire rm`), or set a folder on another disk with QUIRE_HOME." if is_low else ""
    yield Finding("disk", "home", str(home))
    yield Finding("disk", "free", f"{gb(usage.free)} of {gb(usage.total)}", "note" if is_low else "ok", remedy)


def check_gpu(proc: Path = PROC) -> Iterator[Finding]:
    """GPUs and their driver, and whether Quire can use them."""
    gpus = list(_nvidia_gpus())
    driver = next((line for line in _lines(proc / "driver" / "nvidia" / "version") if line.startswith("NVRM")), "")
    if not gpus:
        broken = "the kernel driver is loaded, but nvidia-smi fails: " + driver.partition(":")[2].strip()
        value = broken if driver else "none; models run on the CPU"
        remedy = "Install the driver's tools, then run nvidia-smi." if driver else ""
        yield Finding("gpu", "nvidia", value, "note" if driver else "ok", remedy)
        return
    for index, gpu in enumerate(gpus):
        yield Finding("gpu", f"nvidia {index}", gpu)
    facts = next(facts for facts in map(device_facts, available()) if facts.has_own_memory)
    missing = [name for name in facts.packages if not installed(name)]
    if missing:
        value = f"models run on the CPU: {' and '.join(missing)} must be installed to use the GPU"
        yield Finding("gpu", "device", value, "note", _install_extra(facts.name))
    elif resolve_device(AUTO) == facts.name:
        yield Finding("gpu", "device", f"models run on the GPU by default, with torch {installed('torch')}")
        yield Finding("gpu", "KV formats", kv_formats(facts))
        yield Finding("gpu", "KV windows", kv_windows(facts))
    else:
        value = f"models run on the CPU: {facts.driver} does not exist"
        yield Finding("gpu", "device", value, "note", "Give this container the GPU, or load the driver's module.")


def check_packages() -> Iterator[Finding]:
    """Versions of the required packages, and the extras that are missing."""
    versions = {name: installed(name) for name in PACKAGES}
    yield Finding("packages", "needed", ", ".join(f"{name} {number}" for name, number in versions.items() if number))
    for name in (name for name, number in versions.items() if not number):
        yield Finding("packages", name, "missing", "broken", f"pip install {name}")
    for extra, names in EXTRAS.items():
        missing = [name for name in names if not installed(name)]
        present = ", ".join(f"{name} {installed(name)}" for name in names if name not in missing)
        value = f"{EXTRA_USES[extra]}: " + (f"not installed ({', '.join(missing)})" if missing else present)
        remedy = _install_extra(extra) if missing else ""
        yield Finding("packages", f"[{extra}]", value, "note" if missing else "ok", remedy)


def installed(name: str) -> str | None:
    """Return a package's version without importing it. None: not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def gb(num_bytes: float) -> str:
    """Format a size in GB."""
    return f"{num_bytes / 1e9:,.1f} GB"


def _install_extra(extra: str) -> str:
    """Quire is not on a package index yet, so an extra is installed from the source folder."""
    return f'In Quire\'s source folder: pip install ".[{extra}]"'


def _nvidia_gpus() -> Iterator[str]:
    """Yield name, memory and driver of each GPU, from nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=GPU_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, memory, driver = ([part.strip() for part in line.split(",")] + ["?", "?"])[:3]
        yield f"{name}, {memory}, driver {driver}"


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
