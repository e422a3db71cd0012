"""The memory of a step, predicted from the graph: the most that its values take at once. It does not import torch."""

from __future__ import annotations

from quire.devices._triton.state_work import CHUNK
from quire.devices.base import Limits, LoweringOptions
from quire.graph.graph import Graph, Node, Value
from quire.graph.weight import Weights
from quire.ops.cache import State, cache_groups

from . import ACTIVATIONS, FP8
from .expert_sizes import count_bytes, grouping_bytes, is_few, is_summed, most_tiles, tile_height
from .values import DELTA_RULES, RECURRENT, SUMS, HeldValues, prepare_graph

FLOAT32_BYTES = 4


def state_slots(graph: Graph, limits: Limits) -> int:
    """Return the states of every recurrent layer that requests may use."""
    has_states = any(isinstance(spec, State) for spec in graph.caches)
    return (limits.num_states or limits.max_rows) if has_states else 0


def state_bytes(graph: Graph, limits: Limits) -> int:
    """Return the bytes of all states, with the one for padding of every layer."""
    sizes = (spec.num_bytes for spec in graph.caches if isinstance(spec, State))
    return (1 + state_slots(graph, limits)) * sum(sizes)


def values_of_blocks(graph: Graph, limits: Limits) -> int:
    """Return the numbers of all KV blocks, with one for padding in each group; of all tokens at least a context's."""
    groups = cache_groups(graph.caches, [each.window for each in limits.windows])
    windows = [each.num_blocks for each in limits.windows]
    counts = [limits.num_blocks or limits.max_blocks, *windows, limits.num_source_blocks]
    members = [groups.tokens, *(each.caches for each in groups.windows), groups.sources]
    per_token = (sum(graph.caches[layer].values_per_token for layer in layers) for layers in members)
    return limits.block_tokens * sum(values * (1 + count) for values, count in zip(per_token, counts, strict=True))


def most_held_bytes(graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions) -> int:
    """Return the bytes of the values that the largest step holds at once."""
    graph = prepare_graph(graph, options.fuse)
    sizes = _Sizes(graph, weights, limits, options)
    held: dict[int, int] = {}
    owners: dict[int, int] = {}  # the value whose memory a value is in: itself, or for columns without a copy another
    rows = [*graph.hidden_outputs, *(node.output for node in graph.nodes if node.op.name == "features")]
    kept = limits.max_tokens * FLOAT32_BYTES * sum(value.dim for value in rows)  # in buffers of their own
    most = 0
    for node in graph.nodes:
        made = sizes.made_by(node)
        most = max(most, sum(held.values()) + sum(made.values()) + sizes.inside(node))
        held |= made
        owners |= {value.id: value.id for value in node.outputs}
        owners |= {view: owners[owner] for view, owner in sizes.views(node).items()}
        for value in sizes.values.last_read_by(node):
            owner = owners.pop(value)
            if owner not in owners.values():
                held.pop(owner, None)
    return most + kept


class _Sizes:
    """Bytes of values, and of what a node makes on the way to them."""

    def __init__(self, graph: Graph, weights: Weights, limits: Limits, options: LoweringOptions) -> None:
        self.graph, self.weights, self.limits = graph, weights, limits
        self.values = HeldValues(graph)
        self._value_bytes = FLOAT32_BYTES if (options.dtype or ACTIVATIONS) == "f32" else 2
        self._is_fixed = options.deterministic
        self._converts = options.quantize == "fp8"

    def made_by(self, node: Node) -> dict[int, int]:
        """Return the bytes of a node's outputs. The product that a sum adds is held until the sum is read."""
        parts = 2 if node.op.name in SUMS else 1
        if "top" in node.attrs:
            return self._routed(node)
        if node.op.name == "linear_split":
            return self._split(node)
        if self.values.is_view(node):
            return {}
        return {value.id: self._of(value, parts * value.dim) for value in node.outputs}

    def views(self, node: Node) -> dict[int, int]:
        """Return the outputs of a node that are in the memory of another value, with that value."""
        if self.values.is_view(node):
            return {node.output.id: node.inputs[0].id}
        if node.op.name == "linear_split":
            products = [gapped for outputs in self._products(node) if (gapped := self._gapped(outputs))]
            return {view.id: first.id for first, *more in products for view in more}
        return {}

    def inside(self, node: Node) -> int:
        """Return the bytes of the normed input, and of the product that is rotated or activated."""
        if "chosen" in node.op.inputs:
            return self._inside_experts(node)
        if "top" in node.attrs:
            return 0
        if node.op.name in RECURRENT:
            return self._inside_recurrent(node)
        matrices = self._matrices(node)
        if node.op.name == "linear_split" and not self._is_fp8(matrices):  # products of which all columns are copied
            copied = [outputs for outputs in self._products(node) if not self._gapped(outputs)]
            return sum(self._of(value, value.dim) for outputs in copied for value in outputs)
        if not matrices:
            return 0
        if node.op.name == "attention_latent":  # absorbed queries and sums of latents; expanded keys and values
            num_heads, nope_dim, dim = self.weights[str(node.weights["keys"])].shape
            return self._of(node.output, 2 * num_heads * dim + num_heads * nope_dim + node.output.dim)
        product = sum(self.weights[name].shape[-2] for name in matrices)
        is_output = node.op.name in (*SUMS, "linear", "normed_linear", "head", "normed_head")
        if is_output and not self._is_fp8(matrices):
            product = 0
        normed = node.inputs[0].dim if node.weights.get("norm") is not None or self._is_fp8(matrices) else 0
        queries = node.output.dim if node.cache is not None else 0  # rotated, in their own buffer
        return self._of(node.outputs[0], product + queries) + self._of(node.inputs[0], normed)

    def _products(self, node: Node) -> list[list[Value]]:
        """The outputs of linear_split that are columns of one product: matrices of one format."""
        names = node.weights["weights"]
        assert isinstance(names, tuple)
        formats = [self.weights[str(name)].format for name in names]
        pairs = list(zip(formats, node.outputs, strict=True))
        return [[value for each, value in pairs if each == format] for format in dict.fromkeys(formats)]

    def _gapped(self, outputs: list[Value]) -> list[Value]:
        """The outputs that are not copied."""
        return [value for value in outputs if self.values.takes_gaps(value)]

    def _split(self, node: Node) -> dict[int, int]:
        """Return the bytes of the outputs of linear_split. The first one that is not copied holds the product."""
        sizes: dict[int, int] = {}
        for outputs in self._products(node):
            gapped = self._gapped(outputs)
            sizes |= {value.id: self._of(value, value.dim) for value in outputs if value not in gapped}
            if gapped:
                sizes[gapped[0].id] = sum(self._of(value, value.dim) for value in outputs)
        return sizes

    def _routed(self, node: Node) -> dict[int, int]:
        """Return the bytes of a choice of experts; its grouping, or its counts, are held as long as the numbers."""
        *normed, weights, chosen = node.outputs
        sizes = {value.id: self._of(value, value.dim) for value in normed}
        tokens, num_experts = self._rows(chosen), int(self.graph.shapes[str(node.weights["weight"])][0])
        sizes[weights.id] = sizes[chosen.id] = tokens * chosen.dim * FLOAT32_BYTES
        if is_few(tokens, num_experts, self._is_fixed):
            height, num_tiles = self._tiles(chosen, num_experts)
            sizes[chosen.id] += grouping_bytes(num_tiles, height)
        else:
            sizes[chosen.id] += count_bytes(tokens, num_experts)
        return sizes

    def _inside_experts(self, node: Node) -> int:
        """Return the bytes of the products of all pairs (token, chosen expert), and of their grouping."""
        chosen = node.input("chosen")
        num_experts, ffn, dim = (int(size) for size in self.graph.shapes[str(node.weights["up"])])
        height, num_tiles = self._tiles(chosen, num_experts)
        hidden = num_tiles * height * ffn * self._value_bytes
        if not is_few(self._rows(chosen), num_experts, self._is_fixed):
            hidden += grouping_bytes(num_tiles, height)
        return hidden if is_summed(self._rows(chosen), self._is_fixed) else hidden + self._of(chosen, chosen.dim * dim)

    def _inside_recurrent(self, node: Node) -> int:
        """Return the bytes of the inverses, scores and factors of the delta rule in chunks, and of its own decays."""
        if node.op.name not in DELTA_RULES or self._is_fixed:
            return 0
        decay, heads = node.input("decay").dim, node.input("beta").dim
        factors = 4 * heads if decay == heads else 0
        if node.op.name == "gated_delta_rule":
            factors += decay + heads
        lines = CHUNK * heads * (FLOAT32_BYTES + self._value_bytes)
        return self._rows(node.output) * (lines + FLOAT32_BYTES * factors)

    def _tiles(self, chosen: Value, num_experts: int) -> tuple[int, int]:
        """Return the height of tiles, and the most that there can be."""
        sizes = self._rows(chosen), chosen.dim, num_experts
        height = tile_height(*sizes, self._is_fixed)
        return height, most_tiles(*sizes, height)

    def _rows(self, value: Value) -> int:
        return self.limits.max_tokens if value.shape[0] == "tokens" else self.limits.max_logits

    def _of(self, value: Value, dim: int) -> int:
        return self._rows(value) * dim * (FLOAT32_BYTES if self.values.is_float32(value) else self._value_bytes)

    def _matrices(self, node: Node) -> list[str]:
        """Return the names of the matrices that a node multiplies with."""
        bound = (
            names if isinstance(names, tuple) else (names,) for key, names in node.weights.items() if key != "table"
        )
        return [name for names in bound for name in names if name is not None and len(self.graph.shapes[name]) > 1]

    def _is_fp8(self, matrices: list[str]) -> bool:
        return self._converts or any(self.weights[name].format == FP8 for name in matrices)


PLAN = most_held_bytes
