"""The buffers of a step, planned without packing a weight: by the same walk over the graph that lowers it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Limits, LoweringOptions, Precision
from quire.graph.graph import Graph
from quire.graph.weight import Weights

from . import QUANTIZED
from .buffers import BLOCK
from .lower import walk_graph
from .pack import packed_format, precision_of


def planned_buffer_bytes(graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions) -> int:
    """Return the bytes of all buffers of the program that `lower` would make of this graph."""
    buffers = walk_graph(graph, WeightHeaders(weights, precision_of(options)), options.fuse).buffers
    if graph.outputs:
        buffers.allocate_new(
            -(-graph.output.dim // BLOCK), for_logits=True
        )  # the program's own: the largest of a block
    return buffers.num_bytes(limits)


@dataclass(frozen=True, slots=True)
class WeightHeaders:
    """Shapes and formats of weights. Nothing is read or packed, and all indices are 0."""

    weights: Weights
    precision: Precision

    def is_quantized(self, name: str) -> bool:
        """Return whether products with this weight take quantized activations."""
        return packed_format(self.weights[name], self.precision) in QUANTIZED

    def rows_of(self, name: str) -> int:
        """Return the rows of a matrix, or the length of a vector."""
        return self.weights[name].shape[0]

    def matrix(self, name: str, target: str | None = None) -> int:
        """Return the same index for every matrix."""
        return 0

    def stack(self, name: Any) -> int:
        """Return the same index for every stack."""
        return 0

    def matrix_of_heads(self, name: str, *, transposed: bool) -> int:
        """Return the same index for every matrix."""
        return 0

    def vector(self, name: Any, width: int | None = None) -> int:
        """Return the same index for every vector."""
        return 0

    def vector_of_stack(self, name: Any) -> int:
        """Return the same index for all vectors of a stack."""
        return 0

    def numbers(self, name: str) -> NDArray[Any]:
        """Return zeros in place of the numbers."""
        return np.zeros(prod(self.weights[name].shape), np.float32)


PLAN = planned_buffer_bytes
