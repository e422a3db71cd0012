"""Sample the memory of a process tree, and the GPU memory that it uses."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from quire.bench.machine.processes import process_tree, resident_bytes

SAMPLE_SECONDS = 1.0
MEGABYTE = 1 << 20
NVIDIA_SMI = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


@dataclass(slots=True)
class PeakMemory:
    """The largest samples. None: unknown."""

    memory_bytes: int | None = None
    gpu_bytes: int | None = None

    def sample(self, process: int) -> None:
        """Measure the process and its descendants once."""
        tree = process_tree(process)
        memory, gpu = tree_bytes(tree), gpu_bytes(tree)
        self.memory_bytes = max(filter(None, (self.memory_bytes, memory)), default=None)
        self.gpu_bytes = max(filter(None, (self.gpu_bytes, gpu)), default=None)


@asynccontextmanager
async def watch_memory(process: int | None) -> AsyncIterator[PeakMemory]:
    """Sample a process tree while the context is open, in a thread so that no answer is timed late."""
    peak = PeakMemory()
    if process is None:
        yield peak
        return

    async def sample_periodically() -> None:
        while True:
            await asyncio.to_thread(peak.sample, process)
            await asyncio.sleep(SAMPLE_SECONDS)

    task = asyncio.create_task(sample_periodically())
    try:
        yield peak
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        peak.sample(process)


def tree_bytes(tree: list[int]) -> int | None:
    """Return the resident memory of all processes together; pages that they share are counted once."""
    sizes = [size for process in tree if (size := resident_bytes(process)) is not None]
    return sum(sizes) if sizes else None


def gpu_bytes(tree: list[int]) -> int | None:
    """Return the memory of the tree's processes on NVIDIA GPUs.

    In a container nvidia-smi may report other process ids: if none of the tree is listed, all processes are counted.
    """
    if shutil.which(NVIDIA_SMI[0]) is None:
        return None
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1]
    sizes = {int(process): int(size) for process, size in rows if size.strip().isdecimal()}
    own = [size for process, size in sizes.items() if process in tree]
    return sum(own or sizes.values()) * MEGABYTE if sizes else None
