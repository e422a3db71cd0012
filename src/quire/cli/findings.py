"""What `quire doctor` looks at on this machine. Every check answers findings; none changes anything or goes online."""

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

State = Literal["ok", "note", "broken"]  # fine; could be better; must be mended

# What quire needs to run, and what each extra of the package brings. A test compares both with pyproject.toml.
PACKAGES = (
    *("numpy", "tokenizers", "jinja2", "llguidance", "huggingface_hub", "msgspec", "starlette", "uvicorn", "uvloop"),
    *("httptools", "pyzmq", "httpx", "typer", "rich", "prompt_toolkit", "pyyaml"),
)
EXTRAS = {
    **{facts.name: facts.packages for facts in map(device_facts, available()) if facts.packages},
    "otel": ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"),
}
BRINGS = {"cuda": "NVIDIA GPUs", "otel": "traces for OpenTelemetry"}
NAMESAKE = "quire"  # another project's distribution
LOW_DISK = 2 * 10**9  # less than a small model needs
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


def look(config: Config) -> Iterator[Finding]:
    """Everything that can be seen without a network."""
    yield from software()
    yield from processor()
    yield from memory(config)
    yield from disk(config)
    yield from graphics()
    yield from packages()


def software() -> Iterator[Finding]:
    """This quire, its Python, the system."""
    yield Finding("software", "quire", __version__)
    if other := installed(NAMESAKE):
        value = f"the distribution {NAMESAKE} {other} is installed too, and has the same import name"
        remedy = f"pip uninstall {NAMESAKE}, then install Quire again: its distribution is quire-llm."
        yield Finding("software", "name clash", value, "note", remedy)
    yield Finding("software", "python", f"{platform.python_implementation()} {platform.python_version()}")
    yield Finding("software", "system", f"{platform.system()} {platform.release()} {platform.machine()}")


def processor(proc: Path = PROC) -> Iterator[Finding]:
    """The CPU, the kernels and threads that steps will run on, and why those."""
    yield Finding("cpu", "model", cpu_model(proc))
    device = devices.open(host_device())
    said = device.describe()
    yield Finding("cpu", "features", " ".join(said.features) or "unknown without the native module")
    state: State = "broken" if said.is_broken else "ok" if said.kernels else "note"
    kernels = f"{said.kernels or 'numpy references, many times slower'} ({said.why})"
    yield Finding("cpu", "kernels", kernels, state, said.remedy)
    is_limited = said.num_threads < said.num_processors and said.kernels
    why = ", as its affinity or control group allows" if is_limited else ""
    yield Finding("cpu", "threads", f"{said.num_threads} of {said.num_processors} processors{why}")
    yield Finding("cpu", "KV formats", kv_formats(device.facts()))


def kv_formats(facts: DeviceFacts) -> str:
    """Values of kv_dtype that a device takes."""
    default, *others = facts.kv_formats
    return ", ".join((f"{default} (default)", *others))


def cpu_model(proc: Path) -> str:
    """Its name, as the system tells it."""
    for line in _lines(proc / "cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "Hardware") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()


def memory(config: Config) -> Iterator[Finding]:
    """What the machine has, what a control group leaves of it, and what models may use."""
    allowed, free = devices.host_bytes(), devices.open(host_device()).facts().memory.free_bytes
    lines = (line.split() for line in _lines(PROC / "meminfo"))
    total = next((int(words[1]) * 1024 for words in lines if words[:1] == ["MemTotal:"]), allowed)
    yield Finding("memory", "machine", gb(total) + ("" if free is None else f", {gb(free)} available"))
    if allowed < total:
        yield Finding("memory", "limit", f"{gb(allowed)}, by a control group")
    share = config.cache.memory_share
    yield Finding("memory", "budget", f"{gb(allowed * share)} for models (memory_share {share:g})")


def disk(config: Config) -> Iterator[Finding]:
    """The folder of models: can it be written, and is there room?"""
    home = home_folder(config)
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        remedy = "Give another folder with --home or QUIRE_HOME, or make this one writable."
        yield Finding("disk", "home", f"{home} cannot be written", "broken", remedy)
        return
    usage = shutil.disk_usage(there)
    is_low = usage.free < LOW_DISK
    remedy = "Free some space (quire rm), or give a folder on another disk with QUIRE_HOME." if is_low else ""
    yield Finding("disk", "home", str(home))
    yield Finding("disk", "free", f"{gb(usage.free)} of {gb(usage.total)}", "note" if is_low else "ok", remedy)


def graphics(proc: Path = PROC) -> Iterator[Finding]:
    """GPUs and their driver, and whether this quire can use them."""
    found = list(_nvidia_gpus())
    driver = next((line for line in _lines(proc / "driver" / "nvidia" / "version") if line.startswith("NVRM")), "")
    if not found:
        broken = "the kernel's driver is loaded, but nvidia-smi does not answer: " + driver.partition(":")[2].strip()
        value = broken if driver else "none; models run on the CPU"
        remedy = "Install the driver's tools, and see what nvidia-smi says." if driver else ""
        yield Finding("gpu", "nvidia", value, "note" if driver else "ok", remedy)
        return
    for index, gpu in enumerate(found):
        yield Finding("gpu", f"nvidia {index}", gpu)
    facts = next(facts for facts in map(device_facts, available()) if facts.has_own_memory)
    missing = [name for name in facts.packages if not installed(name)]
    if missing:
        value = f"models run on the CPU: for a GPU {' and '.join(missing)} must be installed"
        yield Finding("gpu", "device", value, "note", _install_extra(facts.name))
    elif resolve_device(AUTO) == facts.name:
        yield Finding("gpu", "device", f"models run on the GPU, with torch {installed('torch')}, unless told otherwise")
        yield Finding("gpu", "KV formats", kv_formats(facts))
    else:
        value = f"models run on the CPU: {facts.driver} is not there"
        yield Finding("gpu", "device", value, "note", "Give this container the GPU, or load the driver's module.")


def packages() -> Iterator[Finding]:
    """Versions of what quire stands on, and the extras that are not here."""
    versions = {name: installed(name) for name in PACKAGES}
    yield Finding("packages", "needed", ", ".join(f"{name} {found}" for name, found in versions.items() if found))
    for name in (name for name, found in versions.items() if not found):
        yield Finding("packages", name, "missing", "broken", f"pip install {name}")
    for extra, names in EXTRAS.items():
        missing = [name for name in names if not installed(name)]
        here = ", ".join(f"{name} {installed(name)}" for name in names if name not in missing)
        value = f"{BRINGS[extra]}: " + (f"not installed ({', '.join(missing)})" if missing else here)
        remedy = _install_extra(extra) if missing else ""
        yield Finding("packages", f"[{extra}]", value, "note" if missing else "ok", remedy)


def installed(name: str) -> str | None:
    """A package's version. None: it is not installed. Nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def gb(num_bytes: float) -> str:
    """As people count memory."""
    return f"{num_bytes / 1e9:,.1f} GB"


def _install_extra(extra: str) -> str:
    """The distribution is on no index yet: it is installed from its source folder."""
    return f'In the folder of Quire\'s source: pip install ".[{extra}]"'


def _nvidia_gpus() -> Iterator[str]:
    """Name, memory and driver of each, by the driver's own tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return
    asked = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=GPU_SECONDS, check=False)
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
