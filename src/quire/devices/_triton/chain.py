"""Launches kernels without gaps: each may start while the previous one ends (programmatic dependent launch).

Law: before `follow`, a kernel of a chain reads only what is there before the step's first kernel starts: constants
(weights), the inputs that the host sent for the step, and states that no other kernel of the step writes; and every
kernel calls `follow`. So when it returns, all earlier kernels are done. Without hardware support, and in the
interpreter, kernels start one by one. So do kernels of many programs: they would all wait, and only the first ones
could start early. That is an attribute of a launch: one compiled kernel serves both.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = (9, 0)
MAX_CHAINED = 2048  # programs
WITHOUT_GROUPS = "DISABLE_MMA_V3"
NOTICEABLE = 0.02  # seconds: loading a kernel that was compiled ahead is faster than this

logger = logging.getLogger("quire.devices.cuda")


@triton.jit
def follow(CHAINED: tl.constexpr):
    """Let the next kernel start, and wait for the previous one."""
    release_next(CHAINED)
    await_previous(CHAINED)


@triton.jit
def release_next(CHAINED: tl.constexpr):
    """Let the next kernel start: the first half of `follow`, for kernels that read their inputs in between."""
    if CHAINED:
        gdc_launch_dependents()


@triton.jit
def await_previous(CHAINED: tl.constexpr):
    """Wait for the previous kernel: the second half of `follow`."""
    if CHAINED:
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
    by_groups: bool = True  # groups of four warps multiply together, where the hardware can


class _Job(NamedTuple):
    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]
    shape: LaunchShape


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
    can_chain = _can_chain(device.index)
    key = (kernel, shape, *constants.values(), *map(_kind, args))
    found = _COMPILED.get(key)
    if found is None:
        job = _Job(kernel, args, constants | {"CHAINED": can_chain}, shape)
        if _IS_RECORDING:
            _RECORDED[key] = job
            return
        began = time.perf_counter()
        with _groups_only_if(shape.by_groups):
            found = _COMPILED[key] = _compile(job)
        seconds = time.perf_counter() - began
        if seconds > NOTICEABLE:
            logger.debug("compiled %s at its first launch in %.0f ms", kernel.__name__, 1e3 * seconds)
    if _IS_RECORDING:
        return
    x, y, z = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    starts_early = can_chain and prod(grid) <= MAX_CHAINED
    rest = (*constants.values(), can_chain)
    found.run.launch(
        x, y, z, stream, found.function, False, starts_early, None, None, found.packed_metadata, None, None, None,
        *args, *rest,
    )  # fmt: skip


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
    for by_groups in (True, False):
        part = {key: job for key, job in jobs.items() if job.shape.by_groups == by_groups}
        with _groups_only_if(by_groups), ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
            _COMPILED.update(zip(part, threads.map(_compile, part.values()), strict=True))
    return len(jobs)


@contextmanager
def _groups_only_if(by_groups: bool) -> Iterator[None]:
    """Compile without products by groups of warps, unless by_groups. Triton reads this from the environment alone."""
    if by_groups:
        yield
        return
    os.putenv(WITHOUT_GROUPS, "1")
    try:
        yield
    finally:
        os.unsetenv(WITHOUT_GROUPS)


def _compile(job: _Job) -> Any:
    with torch.cuda.device(job.args[0].device):  # a new thread has no current device
        options = {"num_warps": job.shape.warps, "num_stages": job.shape.stages}
        kernel = job.kernel.warmup(*job.args, **job.constants, **options, grid=(1,))
        # accessing `run` builds the launcher and loads the kernel
        assert kernel.run.global_scratch_size == 0, "launches pass no scratch memory"
        return kernel


def _kind(argument: Any) -> Any:
    """Return what a compiled kernel depends on: for a tensor, its dtype and whether it is aligned to 16 bytes."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() & 15 == 0
    if isinstance(argument, int):
        return argument == 1, argument & 15 == 0
    return argument if argument is None else float
