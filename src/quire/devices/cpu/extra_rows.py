"""Rows of tokens beside ids and logits: features that a step brings along, hidden rows that it returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.graph.graph import Graph, Node
from quire.ops.batch import Batch

from .buffers import BufferSlice

if TYPE_CHECKING:
    from .lower import _Lowering

Array = NDArray[Any]
NO_QUANTS = -1


class ExtraRows(NamedTuple):
    """Rows of tokens beside ids and logits: what a step brings along, and hidden rows that it returns."""

    features: BufferSlice | None = None
    hidden: tuple[BufferSlice, ...] = ()

    @classmethod
    def of(cls, lowering: _Lowering, graph: Graph) -> ExtraRows:
        """Return the rows of a graph that was lowered."""
        return cls(lowering.features, tuple(lowering.places[value.id] for value in graph.hidden_outputs))

    def give(self, native: Any, batch: Batch) -> None:
        """Fill in the rows that the step brings along."""
        if self.features is None:
            return
        if batch.features is None or batch.features.shape != (len(batch.token_ids), self.features.dim):
            raise ValueError(f"the step has no features of {self.features.dim} numbers for each token")
        native.poke(self.features.columns, np.ascontiguousarray(batch.features, np.float32))

    def take(self, native: Any, num_tokens: int) -> Array | None:
        """Return the hidden rows, side by side. None: the graph has none."""
        if not self.hidden:
            return None
        parts = [np.empty((num_tokens, each.dim), np.float32) for each in self.hidden]
        for part, place in zip(parts, self.hidden, strict=True):
            native.peek(place.columns, part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def emit_features(lowering: _Lowering, node: Node) -> None:
    """Place the rows that the program is given before each step."""
    out = node.output
    place = lowering.buffers.allocate_new(out.dim)
    lowering.places[out.id] = lowering.given[out.id] = lowering.features = place
    lowering.ensure_quants(out)


def emit_concat(lowering: _Lowering, node: Node) -> None:
    """Copy two values into one buffer."""
    out, start = node.output, 0
    index, offset, _ = lowering.place(out)
    for x in node.inputs:
        lowering.emit("gather", x=lowering.read(x), out=(index, offset + start, x.dim), quants=NO_QUANTS)
        start += x.dim
    lowering.release(*node.inputs)
    lowering.ensure_quants(out)


EXTRA_ROWS = {"features": emit_features, "concat": emit_concat}
