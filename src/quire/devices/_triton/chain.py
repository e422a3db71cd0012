"""Kernels one after another without gaps: each may start while the one before it ends (programmatic dependent launch).

Law: a kernel of a chain touches nothing but constants (weights) before `follow`, and every kernel calls it. So when one
goes on, all before it are done. Where the hardware cannot, and in the interpreter, kernels start one by one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HOPPER = (9, 0)


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


def chained(near: torch.Tensor) -> dict[str, Any]:
    """The options of a launch whose kernel calls `follow`."""
    if near.is_cuda and _can_chain(near.device.index):
        return {"CHAINED": True, "launch_pdl": True}
    return {"CHAINED": False}
