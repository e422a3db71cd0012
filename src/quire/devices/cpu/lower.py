"""Lowers a graph to the instructions of a native program, in one pass over the nodes.

What is fused, and how:
    rms_norm, attention, silu_gate   write blocks for the quantized product that reads them, and floats only if another
                                     node reads those
    linear_split                     one instruction over all its matrices, one buffer for all its outputs
    add of a linear                  the last stage of the product, in place if the residual is not read again
    all after the last attention     only for the tokens that yield logits
    rope, rms_norm_heads             in place
    rope's angles                    once per step, not once per layer
    token-wise neighbours            (norms of heads, rope, KV write) are one instruction, token by token
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from quire.devices.base import Limits
from quire.devices.errors import NoKernel
from quire.graph.graph import Graph, Node, Value

from .buffers import NO_COLUMNS, Buffers, BufferSlice, Columns
from .pack import BLOCK, Packer
from .program import NativeProgram

NO_QUANTS = -1


def lower_graph(program: Any, graph: Graph, packer: Packer, limits: Limits) -> NativeProgram:
    """Fill an empty native program, the one that the packer adds weights to."""
    for node in graph.nodes:
        if node.op.name not in KERNELS:
            raise NoKernel(f"The op {node.op.name} has no native kernel on this device.")
    for spec in graph.caches:
        program.cache(limits.kv_dtype, spec.num_heads, spec.head_dim, spec.window or 0)
    lowering = _Lowering(graph, packer)
    lowering.walk()
    lowering.buffers.create(program)
    for method, arguments in lowering.instructions:
        getattr(program, method)(**arguments)
    has_head = graph.nodes[-1].op.name == "logits"
    places = {**lowering.given, **lowering.places}
    return NativeProgram(program, graph.output.dim if has_head else 0, places, limits.num_blocks)


class _Lowering:
    """The state of the pass. A value is released after its last reader, with its outputs placed, is emitted."""

    def __init__(self, graph: Graph, packer: Packer) -> None:
        self.graph, self.packer = graph, packer
        self.buffers = Buffers()
        self.instructions: list[tuple[str, dict[str, Any]]] = []
        self.given: dict[int, BufferSlice] = {}  # values that no node computes: a test feeds them
        self.places: dict[int, BufferSlice] = {}  # float32, of values that are still to be read, or never read
        self.quants: dict[int, BufferSlice] = {}
        self._readers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for value in node.inputs:
                self._readers.setdefault(value.id, []).append(node)
        self._tail = _tail_of(graph)  # from this node on, rows are those of logits_at alone
        self._late = {id(node) for node in graph.nodes[self._tail :]}
        self._is_narrow = False
        self._left = Counter(value.id for node in graph.nodes for value in node.inputs)
        self._residual_of: dict[int, tuple[Node, Value]] = {}  # a linear's output -> the linear, what is added to it
        self._angles: dict[tuple[str, float], tuple[BufferSlice, BufferSlice]] = {}

    def walk(self) -> None:
        made = {value.id for node in self.graph.nodes for value in node.outputs}
        given = {value.id: value for node in self.graph.nodes for value in node.inputs if value.id not in made}
        for value in given.values():
            self.places[value.id] = self.given[value.id] = self.buffers.allocate_new(value.dim)
            self._ensure_quants(value)
        self._find_residuals()
        for place, node in enumerate(self.graph.nodes):
            if place == self._tail:
                self._narrow()
            KERNELS[node.op.name](self, node)

    def _narrow(self) -> None:
        """Gather the values that the tail reads: of many tokens of a prompt, only those that yield logits go on."""
        self._is_narrow = True
        crossing = {v.id: v for node in self.graph.nodes[self._tail :] for v in node.inputs if v.id in self.places}
        for value in crossing.values():
            wide = self.places.pop(value.id)
            out, quants = self._place_both(value)
            self._emit("gather", x=wide.columns, out=out, quants=quants)
            self.buffers.release(wide)

    # --- what is needed of a value

    def _find_residuals(self) -> None:
        """Find adds with a linear on one side that no other node reads: the add emits the linear."""
        linears = {node.outputs[0].id: node for node in self.graph.nodes if node.op.name == "linear"}
        for node in self.graph.nodes:
            sides = (node.inputs, node.inputs[::-1]) if node.op.name == "add" else ()
            for product, other in sides:
                if product.id in linears and len(self._readers[product.id]) == 1:
                    self._residual_of[product.id] = (linears[product.id], other)
                    break

    def _needs(self, value: Value) -> tuple[bool, bool]:
        """Return whether a node reads the value as float32, and whether one reads it in blocks."""
        readers = self._readers.get(value.id, [])
        as_rows, as_blocks = not readers, False
        for node in readers:
            if not self._is_narrow and id(node) in self._late:
                as_rows = True  # it is gathered first
                continue
            kinds = [self.packer.is_quantized(name) for name in _matrices(node)]
            as_blocks |= any(kinds)
            as_rows |= not all(kinds) or not kinds
        return as_rows, as_blocks

    # --- places

    def _emit(self, method: str, **arguments: Any) -> None:
        self.instructions.append((method, arguments))

    def _read(self, value: Value) -> Columns:
        return self.places[value.id].columns if value.id in self.places else (-1, 0, value.dim)

    def _read_quants(self, value: Value) -> int:
        return self.quants[value.id].buffer.index if value.id in self.quants else NO_QUANTS

    def _release(self, *values: Value) -> None:
        """Record one more read of each of these values."""
        for value in values:
            self._left[value.id] -= 1
            if self._left[value.id] == 0:
                for placed in (self.places, self.quants):
                    if value.id in placed:
                        self.buffers.release(placed.pop(value.id))

    def _place(self, value: Value) -> Columns:
        self.places[value.id] = self.buffers.allocate(value.dim, for_logits=self._is_narrow)
        return self.places[value.id].columns

    def _place_both(self, value: Value) -> tuple[Columns, int]:
        """Place rows, blocks or both, as the readers need them, for an instruction that can write both."""
        as_rows, as_blocks = self._needs(value)
        out = self._place(value) if as_rows else NO_COLUMNS
        return out, self._place_quants(value) if as_blocks else NO_QUANTS

    def _place_quants(self, value: Value) -> int:
        self.quants[value.id] = self.buffers.allocate(value.dim, "quants", for_logits=self._is_narrow)
        return self.quants[value.id].buffer.index

    def _ensure_quants(self, value: Value) -> None:
        """Add the blocks of a value whose instruction wrote only rows."""
        if value.id not in self.quants and self._needs(value)[1]:
            x = self._read(value)
            self._emit("gather", x=x, out=NO_COLUMNS, quants=self._place_quants(value))

    # --- ops

    def _embed(self, node: Node) -> None:
        (out,) = node.outputs
        self._emit("embed", table=self.packer.matrix(_name(node, "table")), out=self._place(out))
        self._ensure_quants(out)

    def _rms_norm(self, node: Node) -> None:
        (x,), (out,) = node.inputs, node.outputs
        columns, quants = self._place_both(out)
        weight = self.packer.vector(_name(node, "weight"))
        self._emit("rms_norm", x=self._read(x), weight=weight, eps=node.attrs["eps"], out=columns, quants=quants)
        self._release(x)

    def _in_place(self, node: Node) -> Columns:
        """Place the output in the input's buffer, or, if the input is still to be read, in a copy."""
        (x,), (out,) = node.inputs, node.outputs
        if self._left[x.id] == 1 and x.id not in self.quants:
            self._left[x.id] = 0
            self.places[out.id] = self.places.pop(x.id)
        else:
            self._emit("gather", x=self._read(x), out=self._place(out), quants=NO_QUANTS)
            self._release(x)
        return self.places[out.id].columns

    def _rms_norm_heads(self, node: Node) -> None:
        weight = self.packer.vector(_name(node, "weight"))
        self._emit("rms_norm_heads", x=self._in_place(node), weight=weight, eps=node.attrs["eps"])
        self._ensure_quants(node.outputs[0])

    def _rope(self, node: Node) -> None:
        frequencies, scaling = _name(node, "frequencies"), float(node.attrs["scaling"])
        if (frequencies, scaling) not in self._angles:
            pairs = self.packer.rows_of(frequencies)
            cos, sin = self.buffers.allocate_new(pairs), self.buffers.allocate_new(pairs)
            self._angles[frequencies, scaling] = cos, sin
            table = {"frequencies": self.packer.vector(frequencies), "scaling": scaling}
            self._emit("rope_table", **table, cos=cos.columns, sin=sin.columns)
        cos, sin = self._angles[frequencies, scaling]
        attrs = {"head_dim": node.attrs["head_dim"], "interleaved": node.attrs["interleaved"]}
        self._emit("rope", x=self._in_place(node), cos=cos.columns, sin=sin.columns, **attrs)
        self._ensure_quants(node.outputs[0])

    def _attention(self, node: Node) -> None:
        (q, k, v), (out,) = node.inputs, node.outputs
        self._emit("write_kv", cache=node.cache, k=self._read(k), v=self._read(v))
        assert node.cache is not None
        fused = self.graph.caches[node.cache].head_dim % BLOCK == 0
        columns, quants = self._place_both(out) if fused else (self._place(out), NO_QUANTS)
        attend = {"q": self._read(q), "scale": node.attrs["scale"], "out": columns, "quants": quants}
        self._emit("attend", cache=node.cache, **attend)
        self._ensure_quants(out)
        self._release(q, k, v)

    def _linear(self, node: Node) -> None:
        if node.outputs[0].id not in self._residual_of:
            self._product(node, (_bound(node, "weight"), _bound(node, "bias")))

    def _linear_split(self, node: Node) -> None:
        self._product(node, (_bound(node, "weights"), _bound(node, "biases")))

    def _product(self, node: Node, bound: tuple[list[Any], list[Any]]) -> None:
        names, biases = bound
        width = sum(out.dim for out in node.outputs)
        buffer = self.buffers.allocate(width, for_logits=self._is_narrow, num_values=len(node.outputs))
        offset = 0
        for out in node.outputs:
            self.places[out.id] = BufferSlice(buffer.buffer, offset, out.dim)
            offset += out.dim
        self._emit_product(node.inputs[0], names, biases, buffer.columns, NO_COLUMNS)
        for out in node.outputs:
            self._ensure_quants(out)

    def _emit_product(self, x: Value, names: list[Any], biases: list[Any], out: Columns, residual: Columns) -> None:
        matrices = [self.packer.matrix(name) for name in names]
        vectors = [self.packer.vector(name) for name in biases]
        source = {"x": self._read(x), "quants": self._read_quants(x)}
        self._emit("product", matrices=matrices, biases=vectors, **source, out=out, residual=residual)
        self._release(x)

    def _silu_gate(self, node: Node) -> None:
        (x,), (out,) = node.inputs, node.outputs
        columns, quants = self._place_both(out)
        matrices = [self.packer.matrix(name) for name in _matrices(node)]
        biases = [self.packer.vector(_bound(node, name)[0]) for name in ("gate_bias", "up_bias")]
        source = {"x": self._read(x), "quants": self._read_quants(x)}
        self._emit("gate", matrices=matrices, biases=biases, **source, out=columns, out_quants=quants)
        self._release(x)

    def _add(self, node: Node) -> None:
        (x, y), (out,) = node.inputs, node.outputs
        product = next((v for v in (x, y) if v.id in self._residual_of), None)
        if product is None:
            self._emit("add", x=self._read(x), y=self._read(y), out=self._place(out))
            self._release(x, y)
        else:
            linear, other = self._residual_of[product.id]
            residual = self._read(other)
            if self._left[other.id] == 1 and other.id not in self.quants:  # the sum may overwrite it
                self._left[other.id] = 0
                self.places[out.id] = self.places.pop(other.id)
            else:
                self._place(out)
            bound = (_bound(linear, "weight"), _bound(linear, "bias"))
            self._emit_product(linear.inputs[0], *bound, self.places[out.id].columns, residual)
            if other.id in self.places:
                self._release(other)
        self._ensure_quants(out)

    def _logits(self, node: Node) -> None:
        (x,), (name,) = node.inputs, _matrices(node)
        self._emit("logits", matrix=self.packer.matrix(name), x=self._read(x), quants=self._read_quants(x))
        self._release(x)


def _tail_of(graph: Graph) -> int:
    """Return the index of the first node of the tail: nodes up to the head that treat each token by itself.

    Attention reads other tokens; embed and rope read arrays of the step, which cover all tokens. Without a head there
    is no tail.
    """
    if graph.nodes[-1].op.name != "logits":
        return len(graph.nodes)
    mixing = [place for place, node in enumerate(graph.nodes) if node.op.name in ("attention", "embed", "rope")]
    return max(mixing, default=-1) + 1


def _bound(node: Node, parameter: str) -> list[Any]:
    """Return the names bound to a parameter, as a list."""
    names = node.weights[parameter]
    return list(names) if isinstance(names, tuple) else [names]


def _name(node: Node, parameter: str) -> str:
    (name,) = _bound(node, parameter)
    assert name is not None
    return str(name)


_PRODUCTS = {
    "linear": ("weight",),
    "linear_split": ("weights",),
    "silu_gate": ("gate", "up"),
    "logits": ("weight",),
}


def _matrices(node: Node) -> list[str]:
    """Return the matrices that the node multiplies its input with."""
    return [name for parameter in _PRODUCTS.get(node.op.name, ()) for name in _bound(node, parameter)]


# Every op that has a native kernel, and the method that emits its instructions.
KERNELS: dict[str, Callable[[_Lowering, Node], None]] = {
    "add": _Lowering._add,
    "attention": _Lowering._attention,
    "embed": _Lowering._embed,
    "linear": _Lowering._linear,
    "linear_split": _Lowering._linear_split,
    "logits": _Lowering._logits,
    "rms_norm": _Lowering._rms_norm,
    "rms_norm_heads": _Lowering._rms_norm_heads,
    "rope": _Lowering._rope,
    "silu_gate": _Lowering._silu_gate,
}
