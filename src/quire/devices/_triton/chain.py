"""Kernels one after another without gaps: each may start while the one before it ends (programmatic dependent launch).

Law: before `follow` a kernel of a chain touches nothing but constants (weights) and what the host sent for the step,
which is there before the step's first kernel starts; and every kernel calls it. So when one goes on, all before it are
done. Where the hardware cannot, and in the interpreter, kernels start one by one. So do those of many programs: each of
them would wait, and none but the first could start early.
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
MOST_CHAINED = 2048  # programs
NOTICEABLE = 0.02  # seconds: what was compiled ahead is loaded faster

logger = logging.getLogger("quire.devices.cuda")


@triton.jit
def follow(CHAINED: tl.constexpr):
    """Let the next kernel start, and wait for the one before."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def fetch(address):
    """Ask for the cache lines at these addresses, int64, without waiting for them."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
    )


@cache
def _can_chain(index: int | None) -> bool:
    return torch.cuda.get_device_capability(index) >= HOPPER


class Shape(NamedTuple):
    """How a kernel runs; its own constants aside."""

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


def launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], constants: dict[str, Any], shape: Shape) -> None:
    """Start a kernel whose parameters are `args`, then `constants` in their order, then CHAINED.

    Triton asks all arguments at each launch what they are, which takes ten times as long as the launch. Here it is
    asked once for arguments of a kind.
    """
    device = args[0].device
    if device.type != "cuda":
        assert [*kernel.arg_names[len(args) :]] == [*constants, "CHAINED"], "on a GPU they are passed by position"
        kernel[grid](*args, **constants, CHAINED=False)
        return
    can_chain = prod(grid) <= MOST_CHAINED and _can_chain(device.index)
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
    """Compile and load all kernels that `run` would launch, several at a time; none is launched. Return how many.

    What was compiled once lies on disk, and is found there by the next process. Loading belongs to it: Triton builds a
    launcher with the C compiler at a kernel's first launch, 0.2 s each on a machine that has none yet.
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
    with torch.cuda.device(job.args[0].device):  # a thread begins without one
        kernel = job.kernel.warmup(*job.args, **job.constants, **job.options, grid=(1,))
        assert kernel.run is not None  # asking for it makes the launcher and loads the kernel
        return kernel


def _kind(argument: Any) -> Any:
    """What a compiled kernel depends on: of a tensor its format and whether it begins at a multiple of 16 bytes."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() & 15 == 0
    if isinstance(argument, int):
        return argument == 1, argument & 15 == 0
    return argument if argument is None else float
