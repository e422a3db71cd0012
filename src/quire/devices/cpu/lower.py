"""From a graph to the instructions of a native program, in one walk over its nodes.

Passes have fused what kernels do in one go (`fused_ops` of the device's facts) and have narrowed the tail to the tokens
that yield logits. Here values get buffers. An instruction writes the representation that the readers of its
output need: float32 rows, blocks for a quantized product, or both. Norms of heads and rope work in place where the
input is not read again. The angles of a rope are computed once a step. Token-wise neighbours (norms of heads, rope, KV
write) run as one instruction, token by token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from quire.devices.base import Limits
from quire.graph.graph import Graph, Node, Value
from quire.graph.passes.fuse import RULES
from quire.graph.passes.narrow import narrow_tail
from quire.graph.passes.rewrite import rewrite

from . import FACTS
from .buffers import BLOCK, NO_COLUMNS, Buffers, BufferSlice, Columns
from .caches import add_caches, native_index
from .encoder import emit_attention, emit_pool
from .experts import emit_experts, emit_route
from .extra_rows import EXTRA_ROWS, ExtraRows
from .fallback import Fallback, PlacedNode, interpreter_for, nodes_without_kernel, warn_of_fallback
from .latent import emit_latent
from .pack import IndexesWeights, Packer
from .program import NativeProgram, OutputSizes
from .recurrence import RECURRENT
from .sources import SOURCES, source_caches

NO_QUANTS = NO_VECTOR = -1


def supports(node: Node) -> bool:
    """Is there a kernel for this fused node? Those of the CPU take every format and every attribute."""
    return node.op.name in FACTS.fused_ops


def lower_graph(program: Any, graph: Graph, packer: Packer, limits: Limits, fuse: bool = True) -> NativeProgram:
    """Fill an empty native program, which is the packer's too. Without `fuse`, plain kernels alone."""
    add_caches(program, graph, limits)
    lowering = walk_graph(graph, packer, fuse)
    lowering.buffers.create(program)
    for method, arguments in lowering.instructions:
        getattr(program, method)(**arguments)
    places, fallback = {**lowering.given, **lowering.places}, _fallback(program, lowering, limits)
    extra = ExtraRows.of(lowering, graph)
    lowered = NativeProgram(program, OutputSizes.of(graph), places, limits.num_blocks, fallback, extra)
    lowered.sources = source_caches(graph)
    return lowered


def walk_graph(graph: Graph, weights: IndexesWeights, fuse: bool) -> _Lowering:
    """Choose the instructions and the buffers of a graph."""
    graph = narrow_tail(graph)
    graph = rewrite(graph, RULES, supports) if fuse else graph
    lowering = _Lowering(graph, weights, nodes_without_kernel(graph, KERNELS))
    lowering.walk()
    return lowering


def _fallback(program: Any, lowering: _Lowering, limits: Limits) -> Fallback | None:
    """Return the nodes that run on their references; None: all have kernels."""
    if not lowering.called:
        return None
    warn_of_fallback(lowering.graph, KERNELS)
    fallback = Fallback(interpreter_for(lowering.graph, lowering.packer.weights, limits))
    for node, inputs, outputs in lowering.called:
        fallback.add(PlacedNode(node, tuple(map(program.rows_of, inputs)), tuple(map(program.rows_of, outputs))))
    return fallback


class _Lowering:
    """The walk's state. Values are released when their last reader has been emitted, after its outputs have a place."""

    def __init__(self, graph: Graph, packer: IndexesWeights, without_kernel: Sequence[Node] = ()) -> None:
        self.graph, self.packer = graph, packer
        self.called: list[tuple[Node, list[Columns], list[Columns]]] = []  # nodes that fall back: inputs, outputs
        self._without_kernel = {id(node) for node in without_kernel}
        self.buffers = Buffers()
        self.instructions: list[tuple[str, dict[str, Any]]] = []
        self.given: dict[int, BufferSlice] = {}  # values that no node makes: what a test feeds
        self.places: dict[int, BufferSlice] = {}  # float32, of values that are still read, or that nothing reads
        self.features: BufferSlice | None = None  # see extra_rows.py
        self.quants: dict[int, BufferSlice] = {}
        self._readers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._readers.setdefault(value.id, []).append(node)
        self._left = Counter(value.id for node in graph.nodes for value in node.inputs)
        self._left.update(value.id for value in graph.outputs.values())  # they are read once more, at the end
        self._angles: dict[tuple[str, float], tuple[BufferSlice, BufferSlice]] = {}

    def walk(self) -> None:
        made = {value.id for node in self.graph.nodes for value in node.outputs}
        given = {value.id: value for node in self.graph.nodes for value in node.inputs if value.id not in made}
        for value in given.values():
            place = self.buffers.allocate_new(value.dim, for_logits=_is_narrow(value))
            self.places[value.id] = self.given[value.id] = place
            self.ensure_quants(value)
        for node in self.graph.nodes:
            lower_node = _Lowering._call if id(node) in self._without_kernel else KERNELS[node.op.name]
            lower_node(self, node)
        output = self.graph.output
        if self.graph.outputs and output.id in self.places:  # an op other than `head` made it
            self.emit("output", x=self.read(output))

    # --- what is needed of a value

    def _needs(self, value: Value) -> tuple[bool, bool]:
        """Is it read as float32, and is it read in blocks?"""
        readers = self._readers.get(value.id, [])
        as_rows, as_blocks = not readers or value in self.graph.outputs.values(), False
        for node in readers:
            kinds = [self.packer.is_quantized(name) for name in _matrices(node)] if _reads_blocks(node, value) else []
            as_blocks |= any(kinds)
            as_rows |= not all(kinds) or not kinds or value in node.inputs[1:]
        return as_rows, as_blocks

    # --- places

    def emit(self, method: str, **arguments: Any) -> None:
        self.instructions.append((method, arguments))

    def read(self, value: Value) -> Columns:
        return self.places[value.id].columns if value.id in self.places else (-1, 0, value.dim)

    def read_quants(self, value: Value) -> int:
        return self.quants[value.id].buffer.index if value.id in self.quants else NO_QUANTS

    def release(self, *values: Value) -> None:
        """Each of these has been read once more."""
        for value in values:
            self._left[value.id] -= 1
            if self._left[value.id] == 0:
                for placed in (self.places, self.quants):
                    if value.id in placed:
                        self.buffers.release(placed.pop(value.id))

    def place(self, value: Value) -> Columns:
        self.places[value.id] = self.buffers.allocate(value.dim, for_logits=_is_narrow(value))
        return self.places[value.id].columns

    def place_both(self, value: Value) -> tuple[Columns, int]:
        """Rows, blocks or both, as its readers need it, from an instruction that can write both."""
        as_rows, as_blocks = self._needs(value)
        out = self.place(value) if as_rows else NO_COLUMNS
        return out, self._place_quants(value) if as_blocks else NO_QUANTS

    def _place_quants(self, value: Value) -> int:
        self.quants[value.id] = self.buffers.allocate(value.dim, "quants", for_logits=_is_narrow(value))
        return self.quants[value.id].buffer.index

    def ensure_quants(self, value: Value) -> None:
        """Blocks of a value whose instruction wrote rows alone."""
        if value.id not in self.quants and self._needs(value)[1]:
            x = self.read(value)
            self.emit("gather", x=x, out=NO_COLUMNS, quants=self._place_quants(value))

    # --- ops

    def _call(self, node: Node) -> None:
        """A node that runs on its reference."""
        outputs = [self.place(out) for out in node.outputs]
        self.emit("call", index=len(self.called), at_logits=all(map(_is_narrow, node.outputs)))
        self.called.append((node, list(map(self.read, node.inputs)), outputs))
        for out in node.outputs:
            self.ensure_quants(out)
        self.release(*node.inputs)

    def _embed(self, node: Node) -> None:
        out = node.output
        self.emit(node.op.name, table=self.packer.matrix(_name(node, "table")), **node.attrs, out=self.place(out))
        self.ensure_quants(out)

    def _select(self, node: Node) -> None:
        (x,), out = node.inputs, node.output
        columns, quants = self.place_both(out)
        self.emit("gather", x=self.read(x), out=columns, quants=quants)
        self.release(x)

    def _columns(self, node: Node) -> None:
        """The same buffer, other columns."""
        (x,), out = node.inputs, node.output
        place = self.places[x.id]
        self.places[out.id] = self.buffers.part(place, node.attrs["start"], out.dim)
        self.ensure_quants(out)
        self.release(x)

    def _norm(self, node: Node) -> None:
        (x,), out = node.inputs, node.output
        group = node.attrs["group"] or x.dim
        if group != x.dim and self._is_last_read(x):
            columns, quants = self._in_place(node), NO_QUANTS
            source = columns
        else:
            is_direct = group % BLOCK == 0
            columns, quants = self.place_both(out) if is_direct else (self.place(out), NO_QUANTS)
            source = self.read(x)
            self.release(x)
        bias = self.packer.vector(node.weights["bias"]) if "bias" in node.weights else NO_VECTOR
        weights = {"weight": self.packer.vector(node.weights["weight"]), "bias": bias}
        attrs = {"eps": node.attrs["eps"], "group": group, "is_layer": node.op.name == "layer_norm"}
        self.emit("norm", x=source, **weights, **attrs, out=columns, quants=quants)
        self.ensure_quants(out)

    def _map(self, node: Node) -> None:
        """What is done to each number by itself."""
        out, kind = node.output, node.attrs.get("kind", node.op.name)
        x, y = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
        weight, numbers = NO_VECTOR, [float(node.attrs.get(name, 0.0)) for name in ("factor", "cap", "limit")]
        values = [sum(numbers), 0.0, 0.0, 0.0]
        if kind == "scale_by":
            weight = self.packer.vector(node.weights["weight"], x.dim)
        elif kind == "xielu":
            both = [float(self.packer.numbers(_name(node, name))[0]) for name in ("positive", "negative")]
            values = [*both, float(node.attrs["beta"]), float(node.attrs["eps"])]
        columns, quants = self.place_both(out)
        operands = {"x": self.read(x), "y": NO_COLUMNS if y is None else self.read(y), "weight": weight}
        self.emit("map", kind=kind, **operands, numbers=values, out=columns, quants=quants)
        self.release(*node.inputs)

    def _is_last_read(self, x: Value) -> bool:
        """Is the next read of x its last, and is it stored as float32 alone?"""
        return self._left[x.id] == 1 and x.id not in self.quants and not self.buffers.is_shared(self.places[x.id])

    def _in_place(self, node: Node) -> Columns:
        """The output's columns: those of the input, or a copy of them if the input is still read."""
        x, out = node.inputs[0], node.output
        if self._is_last_read(x):
            self._left[x.id] = 0
            self.places[out.id] = self.places.pop(x.id)
        else:
            self.emit("gather", x=self.read(x), out=self.place(out), quants=NO_QUANTS)
            self.release(x)
        return self.places[out.id].columns

    def _rope(self, node: Node) -> None:
        frequencies, scaling = _name(node, "frequencies"), float(node.attrs["scaling"])
        if (frequencies, scaling) not in self._angles:
            pairs = self.packer.rows_of(frequencies)
            cos, sin = self.buffers.allocate_new(pairs), self.buffers.allocate_new(pairs)
            self._angles[frequencies, scaling] = cos, sin
            table = {"frequencies": self.packer.vector(frequencies), "scaling": scaling}
            self.emit("rope_table", **table, cos=cos.columns, sin=sin.columns)
        cos, sin = self._angles[frequencies, scaling]
        attrs = {"head_dim": node.attrs["head_dim"], "interleaved": node.attrs["interleaved"]}
        self.emit("rope", x=self._in_place(node), cos=cos.columns, sin=sin.columns, **attrs)
        self.ensure_quants(node.output)

    def _scale_by_position(self, node: Node) -> None:
        columns = self._in_place(node)
        self.emit("scale_by_position", x=columns, **node.attrs, out=columns)
        self.ensure_quants(node.output)

    def _attention(self, node: Node) -> None:
        q, out = node.inputs[0], node.output
        cache = native_index(self.graph, node)
        if node.op.name == "attention":
            k, v = node.inputs[1:]
            self.emit("write_kv", cache=cache, k=self.read(k), v=self.read(v))
        is_direct = self.graph.kv_of(node).value_dim % BLOCK == 0
        columns, quants = self.place_both(out) if is_direct else (self.place(out), NO_QUANTS)
        self.emit("attend", cache=cache, q=self.read(q), **self.extras(node), out=columns, quants=quants)
        self.ensure_quants(out)
        self.release(*node.inputs)

    def extras(self, node: Node) -> dict[str, Any]:
        vectors = {name: self.packer.vector(node.weights[name]) for name in ("sinks", "slopes", "distances")}
        return {"scale": node.attrs["scale"], "softcap": node.attrs.get("softcap", 0.0), **vectors}

    def _product(self, node: Node) -> None:
        """linear and linear_split."""
        plural = "s" if node.op.name == "linear_split" else ""
        names, biases = _bound(node, f"weight{plural}"), _bound(node, "biases" if plural else "bias")
        width, value = sum(out.dim for out in node.outputs), node.outputs[0]
        buffer = self.buffers.allocate(width, for_logits=_is_narrow(value), num_values=len(node.outputs))
        offset = 0
        for out in node.outputs:
            self.places[out.id] = BufferSlice(buffer.buffer, offset, out.dim)
            offset += out.dim
        self._emit_product(node.inputs[0], names, biases, buffer.columns, NO_COLUMNS)
        for out in node.outputs:
            self.ensure_quants(out)

    def _emit_product(self, x: Value, names: list[Any], biases: list[Any], out: Columns, residual: Columns) -> None:
        matrices = [self.packer.matrix(name) for name in names]
        vectors = [self.packer.vector(name) for name in biases]
        source = {"x": self.read(x), "quants": self.read_quants(x)}
        self.emit("product", matrices=matrices, biases=vectors, **source, out=out, residual=residual)
        self.release(x)

    def _linear_add(self, node: Node) -> None:
        """The sum is stored where the residual was, unless that is still read."""
        x, residual, out = node.input("x"), node.input("residual"), node.output
        added = self.read(residual)
        if residual.id != x.id and self._is_last_read(residual):
            self._left[residual.id] = 0
            self.places[out.id] = self.places.pop(residual.id)
        else:
            self.place(out)
        bound = (_bound(node, "weight"), _bound(node, "bias"))
        self._emit_product(x, *bound, self.places[out.id].columns, added)
        if residual.id in self.places:
            self.release(residual)
        self.ensure_quants(out)

    def _gate(self, node: Node) -> None:
        """gated_linear, and activated_linear, which has no `up`."""
        (x,), out = node.inputs, node.output
        columns, quants = self.place_both(out)
        matrices = [self.packer.matrix(name) for name in _matrices(node)]
        names = ("gate_bias", "up_bias") if node.op.name == "gated_linear" else ("bias",)
        biases = [self.packer.vector(_bound(node, name)[0]) for name in names]
        source = {"x": self.read(x), "quants": self.read_quants(x)}
        product = {"matrices": matrices, "biases": biases, **source}
        self.emit("gate", kind=node.attrs["kind"], **product, out=columns, out_quants=quants)
        self.release(x)

    def _head(self, node: Node) -> None:
        (x,), (name,) = node.inputs, _matrices(node)
        weights = {"matrix": self.packer.matrix(name), "bias": self.packer.vector(node.weights["bias"])}
        self.emit("head", **weights, **node.attrs, x=self.read(x), quants=self.read_quants(x))
        self.release(x)


def _is_narrow(value: Value) -> bool:
    """Has it a row for each token that yields logits, or for each pool, and not for each token?"""
    return value.shape[0] != "tokens"


def _bound(node: Node, parameter: str) -> list[Any]:
    """Names bound to a parameter, as a list."""
    names = node.weights[parameter]
    return list(names) if isinstance(names, tuple) else [names]


def _name(node: Node, parameter: str) -> str:
    (name,) = _bound(node, parameter)
    assert name is not None
    return str(name)


_PRODUCTS = {
    "linear": ("weight",),
    "linear_split": ("weights",),
    "linear_add": ("weight",),
    "gated_linear": ("gate", "up"),
    "activated_linear": ("weight",),
    "head": ("weight",),
    "experts": ("gate", "up"),
}


def _reads_blocks(node: Node, value: Value) -> bool:
    """Does the node multiply this value with its matrices?"""
    return node.op.name in _PRODUCTS and node.inputs[0].id == value.id and not node.attrs.get("on_input")


def _matrices(node: Node) -> list[str]:
    """Weights that the node multiplies its input with."""
    names = [name for parameter in _PRODUCTS.get(node.op.name, ()) for name in _bound(node, parameter)]
    return [name for name in names if name is not None]


# Every op that has a native kernel, and how it becomes instructions.
KERNELS: dict[str, Callable[[_Lowering, Node], None]] = {
    **dict.fromkeys(("embed", "embed_positions", "embed_types"), _Lowering._embed),
    **dict.fromkeys(("rms_norm", "layer_norm"), _Lowering._norm),
    **dict.fromkeys(("activation", "xielu", "add", "multiply"), _Lowering._map),
    **dict.fromkeys(("scale", "scale_by", "scale_rows", "softcap", "clamp"), _Lowering._map),
    **dict.fromkeys(("attention", "attention_shared"), _Lowering._attention),
    **dict.fromkeys(("linear", "linear_split"), _Lowering._product),
    **dict.fromkeys(("gated_linear", "activated_linear"), _Lowering._gate),
    **RECURRENT,
    "columns": _Lowering._columns,
    "pool": emit_pool,
    **EXTRA_ROWS,
    "attention_latent": emit_latent,
    **SOURCES,
    "attention_bidirectional": emit_attention,
    "experts": emit_experts,
    "head": _Lowering._head,
    "linear_add": _Lowering._linear_add,
    "rope": _Lowering._rope,
    "route": emit_route,
    "scale_by_position": _Lowering._scale_by_position,
    "select": _Lowering._select,
}
