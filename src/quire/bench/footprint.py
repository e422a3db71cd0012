"""The memory of a process and of all its children, and of the GPU that they use."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

EVERY = 1.0  # seconds
KILOBYTE, MEGABYTE = 1024, 1 << 20
NVIDIA = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


@dataclass(slots=True)
class Footprint:
    """The most that was seen. None: the system does not tell."""

    memory_bytes: int | None = None
    gpu_bytes: int | None = None

    def look(self, process: int) -> None:
        """Once."""
        tree = processes_of(process)
        memory, gpu = tree_bytes(tree), gpu_bytes(tree)
        self.memory_bytes = max(filter(None, (self.memory_bytes, memory)), default=None)
        self.gpu_bytes = max(filter(None, (self.gpu_bytes, gpu)), default=None)


@asynccontextmanager
async def watched(process: int | None) -> AsyncIterator[Footprint]:
    """Look now and then while it is open, in a thread: nobody's answer waits for it."""
    seen = Footprint()
    if process is None:
        yield seen
        return

    async def watch() -> None:
        while True:
            await asyncio.to_thread(seen.look, process)
            await asyncio.sleep(EVERY)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        seen.look(process)


def processes_of(root: int) -> list[int]:
    """The process and those that it started, and they, and so on."""
    children: dict[int, list[int]] = defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            children[int(status.read_text().rpartition(") ")[2].split()[1])].append(int(status.parent.name))
    found = [root]
    for process in found:
        found += children[process]
    return found


def tree_bytes(tree: list[int]) -> int | None:
    """Memory that is theirs: what they share among them is counted once."""
    sizes = [size for process in tree if (size := _proportional(process)) is not None]
    return sum(sizes) if sizes else None


def _proportional(process: int) -> int | None:
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/{name}").read_text().splitlines():
                if line.startswith(field):
                    return int(line.split()[1]) * KILOBYTE
    return None


def gpu_bytes(tree: list[int]) -> int | None:
    """Of an NVIDIA GPU. In a container its processes have other numbers: then all that run there are counted."""
    if shutil.which(NVIDIA[0]) is None:
        return None
    try:
        done = subprocess.run(NVIDIA, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1]
    used = {int(process): int(size) for process, size in rows if size.strip().isdecimal()}
    ours = [size for process, size in used.items() if process in tree]
    return sum(ours or used.values()) * MEGABYTE if used else None
