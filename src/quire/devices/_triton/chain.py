"""Launches kernels without gaps: each may start while the previous one ends (programmatic dependent launch).

Law: before `follow`, a kernel of a chain reads only what is there before the step's first kernel starts: constants
(weights), the inputs that the host sent for the step, and states that no other kernel of the step writes; and every
kernel calls `follow`. So when it returns, all earlier kernels are done. Without hardware support, and in the
interpreter, kernels start one by one. So do kernels of many programs: they would all wait, and only the first ones
could start early.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = (9, 0)
MAX_CHAINED = 2048  # programs
NOTICEABLE = 0.02  # seconds: loading a kernel that was compiled ahead is faster than this

logger = logging.getLogger("quire.devices.cuda")


@triton.jit
def follow(CHAINED: tl.constexpr):
    """Let the next kernel start, and wait for the previous one."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def fetch(address):
    """Prefetch the cache lines at these addresses, int64."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@cache
def _can_chain(index: int | None) -> bool:
    return torch.cuda.get_device_capability(index) >= HOPPER


class LaunchShape(NamedTuple):
    """The warps and pipeline stages of a kernel."""

    warps: int = 4
    stages: int = 3


class _Job(NamedTuple):
    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]
    options: dict[str, Any]


_COMPILED: dict[Any, Any] = {}
_RECORDED: dict[Any, _Job] = {}
_IS_RECORDING: list[bool] = []


def launch(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any], shape: LaunchShape
) -> None:
    """Start a kernel whose parameters are `args`, then `constants` in order, then CHAINED.

    Triton inspects all arguments at each launch, which takes ten times as long as the launch. Here it does so once for
    arguments of the same kinds.
    """
    device = args[0].device
    if device.type != "cuda":
        assert [*kernel.arg_names[len(args) :]] == [*constants, "CHAINED"], "on a GPU they are passed by position"
        kernel[grid](*args, **constants, CHAINED=False)
        return
    can_chain = prod(grid) <= MAX_CHAINED and _can_chain(device.index)
    key = (kernel, shape, can_chain, *constants.values(), *map(_kind, args))
    found = _COMPILED.get(key)
    if found is None:
        options = {"num_warps": shape.warps, "num_stages": shape.stages, "launch_pdl": can_chain}
        if _IS_RECORDING:
            _RECORDED[key] = _Job(kernel, args, constants | {"CHAINED": can_chain}, options)
            return
        began = time.perf_counter()
        _COMPILED[key] = kernel[grid](*args, **constants, CHAINED=can_chain, **options)
        seconds = time.perf_counter() - began
        if seconds > NOTICEABLE:
            logger.debug("compiled %s at its first launch in %.0f ms", kernel.__name__, 1e3 * seconds)
        return
    if _IS_RECORDING:
        return
    x, y, z = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    rest = (*constants.values(), can_chain)
    found.run(x, y, z, stream, found.function, found.packed_metadata, None, None, None, *args, *rest)


def compile_ahead(run: Callable[[], None]) -> int:
    """Compile and load all kernels that `run` would launch, in parallel; none is launched. Return how many.

    Compiled kernels are cached on disk for the next process. Loading is included: at a kernel's first launch Triton
    builds a launcher with the C compiler, which takes 0.2 s each on a machine without cached ones.
    """
    _IS_RECORDING.append(True)
    try:
        run()
    finally:
        _IS_RECORDING.pop()
    jobs = dict(_RECORDED)
    _RECORDED.clear()
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        _COMPILED.update(zip(jobs, threads.map(_compile, jobs.values()), strict=True))
    return len(jobs)


def _compile(job: _Job) -> Any:
    with torch.cuda.device(job.args[0].device):  # a new thread has no current device
        kernel = job.kernel.warmup(*job.args, **job.constants, **job.options, grid=(1,))
        assert kernel.run is not None  # accessing it builds the launcher and loads the kernel
        return kernel


def _kind(argument: Any) -> Any:
    """Return what a compiled kernel depends on: for a tensor, its dtype and whether it is aligned to 16 bytes."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() & 15 == 0
    if isinstance(argument, int):
        return argument == 1, argument & 15 == 0
    return argument if argument is None else float
