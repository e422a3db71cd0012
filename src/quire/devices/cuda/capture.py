"""Captured steps: one graph for each bucket of rows, made when it is first needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .inputs import Sizes

Answer = TypeVar("Answer")


class Kind(NamedTuple):
    """What else tells two graphs of one bucket apart."""

    has_groups: bool  # rows share a prefix
    mode: str  # how tokens are chosen: none (not in the graph), greedy, any


class Buckets:
    """Numbers of rows that steps are padded to: close together where a row is a large part of the step."""

    def __init__(self, most: int) -> None:
        steps = ((1, 1, 4), (4, 2, 16), (16, 8, 64), (64, 16, 256), (256, 32, 512), (512, 64, 1 << 20))
        sizes = {most}
        for start, step, end in steps:
            sizes |= set(range(start, min(end, most), step))
        self.sizes = sorted(sizes)

    def find(self, sizes: Sizes) -> int | None:
        """The bucket of a step in which every row has one token and its logits; None for any other."""
        if not sizes.tokens == sizes.rows == sizes.logits:
            return None
        return self.sizes[bisect_left(self.sizes, sizes.rows)]


@dataclass(slots=True, eq=False)
class Captured:
    """A graph that can be run again and again."""

    graph: Any
    logits: Tensor
    num_rows: int

    def replay(self) -> Tensor:
        """Start it."""
        self.graph.replay()
        return self.logits


def capture(whole: Callable[[], Tensor], stream: Any, pool: Any, num_rows: int) -> Captured:
    """The graph of a step. All graphs of a program share `pool`: they never run at the same time.

    They share the memory of their logits too, which are read before the next step. Held, those of all buckets up to
    1,024 rows would take 6 GB for each kind (vocabulary of 128,256).
    """
    graph, logits = record(whole, stream, pool)
    return Captured(graph, torch.as_tensor(_Unowned(logits), device=logits.device), num_rows)


class _Unowned:
    """A float32 tensor's memory, without a hold on it: what a graph writes there is there until another is replayed."""

    def __init__(self, tensor: Tensor) -> None:
        assert tensor.dtype == torch.float32 and tensor.is_contiguous()
        memory = {"shape": tuple(tensor.shape), "typestr": "<f4", "data": (tensor.data_ptr(), False), "version": 3}
        self.__cuda_array_interface__ = memory


def record(run: Callable[[], Answer], stream: Any, pool: Any) -> tuple[Any, Answer]:
    """Run once, so that all kernels are compiled and nothing is chosen for the first time; then record.

    Graphs of one pool share their memory. None: a new one.
    """
    run()
    graph = torch.cuda.CUDAGraph()
    stream.synchronize()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        answer = run()
    return graph, answer
