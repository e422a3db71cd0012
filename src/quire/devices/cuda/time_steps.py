"""Times what a step is measured against: the library's products alone; and a step's kernels, each by its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.devices._triton.attention import AttentionConfig
from quire.devices._triton.bidirectional import RowBounds, attend_rows

TILES = [
    AttentionConfig(queries, keys, warps, stages)
    for queries, keys, warps in ((64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (256, 64, 8))
    for stages in (2, 3)
]
LARGE = 8192  # rows and columns of the matrices of the library's largest rate


class KernelTime(NamedTuple):
    """All launches of one kernel."""

    name: str
    launches: int
    seconds: float


def product_rate(seconds: float, size: int = LARGE, place: str = "cuda") -> float:
    """Return the products and sums a second of a large square product in bfloat16, repeated for so long."""
    matrices = [torch.randn((size, size), device=place).bfloat16() for _ in range(3)]
    return 2 * size**3 / _mean(lambda: torch.mm(matrices[0], matrices[1].t(), out=matrices[2]), seconds, place)


def products_seconds(
    num_tokens: int, shapes: Sequence[tuple[int, int]], seconds: float, place: str = "cuda"
) -> float:  # fmt: skip
    """Return the time of products of so many tokens with matrices of these shapes, and biases, one after another."""
    options: Any = {"device": place, "dtype": torch.bfloat16}
    given = {columns: torch.randn((num_tokens, columns), **options) for _, columns in shapes}
    weights = [torch.randn(shape, **options) * shape[1] ** -0.5 for shape in shapes]
    biases = [torch.randn(rows, **options) for rows, _ in shapes]
    outs = {rows: torch.empty((num_tokens, rows), **options) for rows, _ in shapes}

    def run() -> None:
        for weight, bias in zip(weights, biases, strict=True):
            torch.addmm(bias, given[weight.shape[1]], weight.t(), out=outs[weight.shape[0]])

    return _mean(run, seconds, place)


def attention_seconds(num_tokens: int, length: int, num_heads: int, dim: int, seconds: float) -> dict[str, float]:
    """Return the times of attention within rows of so many tokens each, by tiles: those in use first."""
    qkv = torch.randn((num_tokens, 3 * num_heads * dim), device="cuda").bfloat16()
    q, k, v = (part.view(num_tokens, num_heads, dim) for part in qkv.chunk(3, dim=1))
    rows = RowBounds.of(torch.arange(num_tokens, dtype=torch.int32, device="cuda") % length)
    out = torch.empty((num_tokens, num_heads, dim), dtype=torch.bfloat16, device="cuda")
    found = {}
    for tile in (None, *TILES):
        name = "in use" if tile is None else "x".join(map(str, tile))
        found[name] = _mean(partial(attend_rows, q, k, v, rows, out, scale=dim**-0.5, config=tile), seconds, "cuda")
    return found


def kernel_times(run: Callable[[], object]) -> list[KernelTime]:
    """Return the time of each kernel that a run launches on the GPU, the longest first."""
    run()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profile:
        run()
        torch.cuda.synchronize()
    events = [each for each in profile.key_averages() if each.device_type == torch.autograd.DeviceType.CUDA]
    found = [KernelTime(each.key, each.count, each.self_device_time_total * 1e-6) for each in events]
    return sorted(found, key=lambda each: -each.seconds)


def _mean(run: Callable[[], Tensor | None], seconds: float, place: str) -> float:
    """Return the mean time of a run, of as many as take so long."""
    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    run()
    wait()
    began = time.perf_counter()
    run()
    wait()
    count = max(1, round(seconds / (time.perf_counter() - began)))
    began = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - began) / count
