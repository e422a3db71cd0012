"""CUDA graphs of steps: one for each bucket of rows and kind of step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .inputs import StepLayout, StepSizes

Result = TypeVar("Result")
CAPTURED_AT = 2  # uses: a kind of step that occurs once is not worth the time of a capture
IDLE_ROWS = 64  # steps of up to this many rows are captured first, in both sampling modes


class GraphKind(NamedTuple):
    """What distinguishes two graphs of one bucket."""

    has_groups: bool  # rows share a prefix
    mode: str  # how tokens are sampled: none (not in the graph), greedy, any
    drafts: str = ""  # how attention of rows with several tokens is planned (drafted.py); empty: every row has one


class Buckets:
    """The numbers of tokens that steps are padded to: dense where one token is a large part of the step."""

    def __init__(self, most: int) -> None:
        steps = ((1, 1, 4), (4, 2, 16), (16, 8, 64), (64, 16, 256), (256, 32, 512), (512, 64, 1 << 20))
        sizes = {most}
        for start, step, end in steps:
            sizes |= set(range(start, min(end, most), step))
        self.sizes = sorted(sizes)

    def find(self, sizes: StepSizes) -> int | None:
        """Return the bucket of a step in which every row decodes; None for any other step."""
        if not (sizes.drafts or sizes.tokens == sizes.rows == sizes.logits) or sizes.tokens > self.sizes[-1]:
            return None
        return self.sizes[bisect_left(self.sizes, sizes.tokens)]


def idle_captures(plain: Buckets, drafted: Buckets, drafts_of: Callable[[int], str]) -> Iterator[tuple[int, GraphKind]]:
    """Yield the graphs to capture in idle time, the likeliest first: few rows before many.

    Shared prefixes (of two rows or more) are included: captured on demand, the first burst of such steps would wait
    20 to 45 ms per bucket. Steps with drafts that share a prefix are not: they are rare. `drafts_of` is how steps with
    drafts of so many tokens are planned.
    """
    yield from _plain_captures(0, IDLE_ROWS, plain)
    for mode in ("greedy", "any"):
        for size in drafted.sizes:
            if size > 1:
                yield size, GraphKind(has_groups=False, mode=mode, drafts=drafts_of(size))
    yield from _plain_captures(IDLE_ROWS, plain.sizes[-1], plain)


def _plain_captures(least: int, most: int, buckets: Buckets) -> Iterator[tuple[int, GraphKind]]:
    for mode in ("greedy", "any"):
        for size in buckets.sizes:
            if least < size <= most:
                yield size, GraphKind(has_groups=False, mode=mode)
                if size > 1:
                    yield size, GraphKind(has_groups=True, mode=mode)


@dataclass(slots=True, eq=False)
class CapturedStep:
    """A graph that can be replayed."""

    graph: Any
    logits: Tensor
    layout: StepLayout

    def replay(self) -> Tensor:
        """Start the graph; return its logits."""
        self.graph.replay()
        return self.logits


def capture(whole: Callable[[], Tensor], stream: Any, pool: Any, layout: StepLayout) -> CapturedStep:
    """Capture the graph of a step. All graphs of a program share `pool`: they never run at the same time.

    They share the memory of their logits too, which are read before the next step. Kept separately, the logits of all
    buckets up to 1,024 rows would take 6 GB per kind (vocabulary of 128,256).
    """
    graph, logits = record(whole, stream, pool)
    return CapturedStep(graph, torch.as_tensor(_Unowned(logits), device=logits.device), layout)


class _Unowned:
    """A view of a float32 tensor that does not keep its memory alive. Valid until another graph is replayed."""

    def __init__(self, tensor: Tensor) -> None:
        assert tensor.dtype == torch.float32 and tensor.is_contiguous()
        memory = {"shape": tuple(tensor.shape), "typestr": "<f4", "data": (tensor.data_ptr(), False), "version": 3}
        self.__cuda_array_interface__ = memory


def record(run: Callable[[], Result], stream: Any, pool: Any) -> tuple[Any, Result]:
    """Run once, so that all kernels are compiled and all lazy choices are made; then record a graph.

    Graphs of one pool share their memory. None: a new pool.
    """
    run()
    graph = torch.cuda.CUDAGraph()
    stream.synchronize()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        result = run()
    return graph, result
