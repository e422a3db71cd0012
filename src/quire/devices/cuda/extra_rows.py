"""Rows of tokens beside ids and logits: features that a step brings along, and hidden rows that it returns.

Both are in buffers that stay where they are, so that captured steps read and write them too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.graph.graph import Graph
from quire.ops.batch import Batch

from .instructions import Run


@dataclass(frozen=True, slots=True, eq=False)
class RowBuffers:
    """The buffers of a program, [max_tokens, dim] each. None: it has no such rows."""

    features: Tensor | None = None
    hidden: Tensor | None = None

    @classmethod
    def of(cls, graph: Graph, max_tokens: int, dtype: torch.dtype, device: torch.device) -> RowBuffers:
        """Allocate what a graph needs."""
        read = [node.output.dim for node in graph.nodes if node.op.name == "features"]
        kept = [value.dim for value in graph.hidden_outputs]
        make = [torch.zeros((max_tokens, dim), dtype=dtype, device=device) for dim in (*read, *kept)]
        return cls(make[0] if read else None, make[-1] if kept else None)

    def give(self, batch: Batch) -> None:
        """Copy the features of a step to the device."""
        if self.features is not None and batch.features is not None:
            rows = torch.from_numpy(np.ascontiguousarray(batch.features))
            self.features[: len(rows)].copy_(rows)

    def take(self, num_tokens: int) -> Tensor | None:
        """Return a copy of the hidden rows of the step that was started last."""
        return None if self.hidden is None else self.hidden[:num_tokens].clone()


@dataclass(frozen=True, slots=True, eq=False)
class ReadFeatures:
    """The rows that came with the tokens."""

    buffer: Tensor
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = self.buffer[: len(run.ids)]


@dataclass(frozen=True, slots=True, eq=False)
class StoreHidden:
    """Keeps a value for the host."""

    value: int
    buffer: Tensor

    def __call__(self, run: Run) -> None:
        self.buffer[: len(run.ids)].copy_(run.whole(self.value))


@dataclass(frozen=True, slots=True, eq=False)
class Concatenate:
    """Two values side by side."""

    value: int
    other: int
    out: int

    def __call__(self, run: Run) -> None:
        run.values[self.out] = torch.cat([run.whole(self.value), run.whole(self.other)], dim=1)
