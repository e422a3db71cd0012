"""Nodes without a native kernel: each runs on its numpy reference, in place in the program's buffers.

The program stops at such a node, one of its threads calls `FallbackStep` with the node's number, and the other nodes
run natively. If a node reads a KV cache, all nodes of that cache run on their references: the layouts differ.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray

from quire.devices.base import Limits
from quire.graph.graph import Graph, Node
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weights
from quire.ops.batch import Batch

Array = NDArray[Any]
logger = logging.getLogger("quire.devices.cpu")


def interpreter_for(graph: Graph, weights: Weights, limits: Limits) -> Interpreter:
    """Return an interpreter with the caches that these limits ask for."""
    blocks_of = {each.window: each.num_blocks for each in limits.windows}
    num_states = limits.num_states or limits.max_rows
    made = Interpreter(graph, weights, limits.num_blocks, limits.block_tokens, num_states, blocks_of)
    made.reserve_sources(limits.num_source_blocks)
    return made


class PlacedNode(NamedTuple):
    """A node, and the rows of its inputs and outputs: all that the program has, of which a step uses the first."""

    node: Node
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(slots=True)
class Fallback:
    """The nodes of one program that have no kernel, with float32 weights and KV caches of their own."""

    interpreter: Interpreter
    nodes: list[PlacedNode] = field(default_factory=list)

    def add(self, placed: PlacedNode) -> None:
        """Add the next node. Its weights are read now: their file may be closed after lowering."""
        self.interpreter.read_weights(placed.node)
        self.nodes.append(placed)

    def begin(self, batch: Batch) -> FallbackStep:
        """Prepare a step."""
        self.interpreter.copy_blocks(batch)
        return FallbackStep(self, batch)


@dataclass(frozen=True, slots=True)
class FallbackStep:
    """One step of the nodes."""

    fallback: Fallback
    batch: Batch

    def __call__(self, index: int) -> None:
        """Run the node with this number."""
        node, inputs, outputs = self.fallback.nodes[index]
        arguments = [self._used(array, value.shape[0]) for array, value in zip(inputs, node.inputs, strict=True)]
        results = self.fallback.interpreter.run_node(node, arguments, self.batch)
        for array, value, result in zip(outputs, node.outputs, results, strict=True):
            self._used(array, value.shape[0])[:] = result

    def _used(self, rows: Array, kind: int | str) -> Array:
        of_kind = {"logits": self.batch.logits_at, "pooled": self.batch.pools}
        used: Array = rows[: len(of_kind.get(str(kind), self.batch.token_ids))]
        return used


def nodes_without_kernel(graph: Graph, kernels: Collection[str]) -> Sequence[Node]:
    """Return the nodes that must fall back."""
    caches = {node.cache for node in graph.nodes if node.op.name not in kernels and node.cache is not None}
    return [node for node in graph.nodes if node.op.name not in kernels or node.cache in caches]


def warn_of_fallback(graph: Graph, kernels: Collection[str]) -> None:
    """Log one warning for each op of the graph that has no kernel."""
    for name in dict.fromkeys(node.op.name for node in graph.nodes if node.op.name not in kernels):
        logger.warning(
            "The op %s has no native kernel. It runs on its numpy reference, many times slower. Others run natively.",
            name,
        )
