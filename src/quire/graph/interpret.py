"""Runs a graph with the numpy references: what every device is tested against, and the fallback without a compiler.

Nodes run in order, in float32. Weights are dequantized at first use and cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from quire.graph.graph import Graph, Node, OutputKind, WeightNames
from quire.graph.weight import Weights
from quire.ops.batch import Batch
from quire.ops.cache import Cross, CrossCache, ReferenceCache, cache_groups, empty_cache

Array = NDArray[Any]


class Interpreter:
    """A graph, its weights, and the KV cache, which only this object writes."""

    def __init__(
        self,
        graph: Graph,
        weights: Weights,
        num_blocks: int,
        block_tokens: int = 16,
        num_states: int = 64,
        windows: Mapping[int, int] | None = None,
    ) -> None:
        """`windows`: the reaches whose layers have block tables of their own, with their numbers of blocks."""
        self.graph, self.block_tokens = graph, block_tokens
        blocks_of = windows or {}
        groups = cache_groups(graph.caches, tuple(blocks_of))
        self._groups = [groups.window_of(index) for index in range(len(graph.caches))]
        sizes = [num_blocks if at is None else blocks_of[groups.windows[at].window] for at in self._groups]
        self.caches = [
            empty_cache(spec, size, block_tokens, num_states) for spec, size in zip(graph.caches, sizes, strict=True)
        ]
        self._weights = weights
        self._numbers: dict[int, Array] = {}  # float32, by the weight's identity: tied names share one array

    def run(self, batch: Batch) -> Array:
        """Run one step; return the logits of batch.logits_at, float32 [L, vocab], or the graph's other output."""
        return self._values(batch)[self.graph.output.id]

    def outputs(self, batch: Batch) -> dict[OutputKind, Array]:
        """Run one step; return all outputs."""
        values = self._values(batch)
        return {kind: values[value.id] for kind, value in self.graph.outputs.items()}

    def _values(self, batch: Batch) -> dict[int, Array]:
        self.copy_blocks(batch)
        values: dict[int, Array] = {}
        for node in self.graph.nodes:
            outputs = self.run_node(node, [values[value.id] for value in node.inputs], batch)
            values |= {value.id: array for value, array in zip(node.outputs, outputs, strict=True)}
        return values

    def copy_blocks(self, batch: Batch) -> None:
        """Copy KV blocks as the step says, before any node runs."""
        for cache, group in zip(self.caches, self._groups, strict=True):
            cache.copy(batch.in_window(group).copies)

    def grouped_caches(self) -> list[tuple[ReferenceCache, int | None]]:
        """Return every cache with the number of its window group; None: it has none."""
        return list(zip(self.caches, self._groups, strict=True))

    def reserve_sources(self, num_blocks: int) -> None:
        """Make room for sources: so many blocks in each layer that reads them."""
        for index, spec in enumerate(self.graph.caches):
            if isinstance(spec, Cross):
                self.caches[index] = empty_cache(spec, num_blocks, self.block_tokens)

    def store_source(self, slots: Array, pairs: Array) -> None:
        """Store keys and values of tokens of sources: a layer's keys, then its values, layer by layer."""
        at = 0
        for cache in self.caches:
            if isinstance(cache, CrossCache):
                keys, values = (cache.spec.num_heads * dim for dim in cache.spec.vectors)
                cache.pages.write(slots, pairs[:, at : at + keys], pairs[:, at + keys : at + keys + values])
                at += keys + values

    def run_node(self, node: Node, inputs: Sequence[Array], batch: Batch) -> tuple[Array, ...]:
        """Run one node's reference on its inputs."""
        out = node.op.reference(**self._bind(node, inputs, batch), **node.attrs)
        return out if isinstance(out, tuple) else (out,)

    def read_weights(self, node: Node) -> dict[str, Any]:
        """Return the node's weights by parameter, float32."""
        return {name: self._read(names) for name, names in node.weights.items()}

    def _bind(self, node: Node, inputs: Sequence[Array], batch: Batch) -> dict[str, Any]:
        """Return the reference's positional arguments, by name."""
        args: dict[str, Any] = {**dict(zip(node.op.inputs, inputs, strict=True)), **self.read_weights(node)}
        args |= {name: getattr(batch, name) for name in node.op.reads}
        if node.op.uses_batch:
            args["batch"] = batch if node.cache is None else batch.in_window(self._groups[node.cache])
        if node.cache is not None:
            args["cache"] = self.caches[node.cache]
        return args

    def _read(self, names: WeightNames) -> Any:
        if isinstance(names, tuple):
            return tuple(self._read(name) for name in names)
        if names is None:
            return None
        weight = self._weights[names]
        if id(weight) not in self._numbers:
            self._numbers[id(weight)] = weight.float32()
        return self._numbers[id(weight)]
