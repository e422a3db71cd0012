"""Lowers a graph to instructions, in one pass over the nodes. What is fused, and how:

rms_norm           with the product that reads it
linear_split, rms_norm_heads, rope, attention   one instruction: one product, one kernel up to the KV write, attention
silu_gate          one product over both matrices, or one kernel with the activation
add of a linear    the last stage of the product, or the first of the next norm
all after the last attention    only for the tokens that yield logits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from quire.devices._triton.rope import HeadNorm, Heads, RopeTables
from quire.devices.errors import NoKernel
from quire.graph.graph import Graph, Node, Value
from quire.graph.passes.fuse import fuse_gate, fuse_head, fuse_residual, merge_linears
from quire.graph.passes.narrow import narrow_tail
from quire.graph.passes.rewrite import rewrite

from .attention import terms_of
from .caches import Caches
from .instructions import AddProduct, Attend, Embed, Forget, Gate, Head, Instruction, Norm, Select
from .linear import Multiplies
from .weights import Placer

RULES = (fuse_head, fuse_gate, fuse_residual, merge_linears)
AHEAD_BYTES = 4 << 20  # more would evict from the cache what the running product still needs


def supports(node: Node) -> bool:
    """Is there a kernel for this fused node?"""
    attrs = node.attrs
    if node.op.name == "head":
        return attrs["factor"] == 1.0 and not attrs["cap"] and node.weights["bias"] is None
    if node.op.name == "gated_linear":
        return bool(attrs["kind"] == "silu")
    return node.op.name in ("linear_add", "linear_split")


def fused(graph: Graph) -> Graph:
    """Return the graph with the fused ops that the device has kernels for."""
    return rewrite(narrow_tail(graph), RULES, supports)


class Lowering:
    """The state of the pass."""

    def __init__(
        self, graph: Graph, placer: Placer, caches: Caches, num_positions: int, fixed_chunk: int | None
    ) -> None:
        self.graph, self.placer, self.caches = graph, placer, caches
        self.num_positions, self.fixed_chunk = num_positions, fixed_chunk
        self.instructions: list[Instruction] = []
        self._maker = {value.id: node for node in graph.nodes for value in node.outputs}
        self._num_readers = Counter(value.id for node in graph.nodes for value in node.inputs)
        self._turns: dict[tuple[str, float], RopeTables] = {}

    def walk(self) -> list[Instruction]:
        """Return all instructions, including those that free values."""
        for node in self.graph.nodes:
            emit = _EMIT.get(node.op.name)
            if emit is None:
                raise NoKernel(f"The op {node.op.name} has no kernel on this device.")
            emit(self, node)
        look_ahead([each.linear for each in self.instructions if isinstance(each, Attend | AddProduct | Gate | Head)])
        return _freeing_values(self.instructions, self.graph.output.id)

    # --- ops

    def embed(self, node: Node) -> None:
        self.instructions.append(Embed(self.placer.table(_name(node, "table")), node.outputs[0].id))

    def select(self, node: Node) -> None:
        self.instructions.append(Select(node.inputs[0].id, node.output.id))

    def fused_into_consumer(self, node: Node) -> None:
        """Emit nothing: the op that reads it emits it."""

    def attention(self, node: Node) -> None:
        q, k, v = node.inputs
        split, q_norm, turn = self._back(q)
        split_k, k_norm, turn_k = self._back(k)
        split_v, v_norm, turn_v = self._back(v)
        if (
            split is None
            or not (split is split_k is split_v)
            or v_norm is not None
            or turn_v is not None
            or turn is None
            or turn_k is None
        ):
            raise NoKernel("Attention whose q, k and v do not come from one linear_split has no kernel on this device.")
        if [value.id for value in split.outputs] != [self._origin(x) for x in (q, k, v)]:
            raise NoKernel("Attention over a linear_split in another order than q, k, v has no kernel on this device.")
        cache = self.graph.caches[node.cache or 0]
        if cache.key_dim != cache.value_dim:
            raise NoKernel("Attention with keys and values of different sizes has no kernel on this device.")
        if turn.weights != turn_k.weights or turn.attrs != turn_k.attrs:
            raise NoKernel("Attention whose q and k have different ropes has no kernel on this device.")
        if (q_norm is None) != (k_norm is None) or (q_norm and k_norm and q_norm.attrs != k_norm.attrs):
            raise NoKernel("Attention with different norms on q and on k has no kernel on this device.")
        source, norm = self._behind_norm(split.inputs[0])
        linear = self.placer.matrix(_names(split, "weights"), _names(split, "biases"))
        head_norm = None
        if q_norm is not None and k_norm is not None:
            of_q, of_k = (self.placer.vector(_name(each, "weight")) for each in (q_norm, k_norm))
            head_norm = HeadNorm(of_q, of_k, q_norm.attrs["eps"])
        heads = Heads(q.dim // cache.key_dim, cache.num_heads, cache.key_dim)
        softcap, sinks, slopes, distances = terms_of(node, self.placer)
        self.instructions.append(
            Attend(
                source,
                norm,
                linear,
                heads,
                head_norm,
                self._turns_of(turn),
                self.caches,
                node.cache or 0,
                node.attrs["scale"],
                cache.window,
                self.fixed_chunk,
                node.outputs[0].id,
                cache.chunk,
                softcap,
                sinks,
                slopes,
                distances,
            )
        )

    def linear_add(self, node: Node) -> None:
        x, residual = node.inputs
        if not self._is_last_reader(node, residual):  # the sum is computed in place
            raise NoKernel("A residual that is read again after the sum has no kernel on this device.")
        linear = self.placer.matrix((_name(node, "weight"),), (node.weights["bias"],))  # type: ignore[arg-type]
        self.instructions.append(AddProduct(x.id, linear, residual.id, node.output.id))

    def _is_last_reader(self, node: Node, value: Value) -> bool:
        """Is a value, also through a norm that its readers compute, read by no later node?"""
        place = next(index for index, each in enumerate(self.graph.nodes) if each is node)
        later = self.graph.nodes[place + 1 :]
        norms = {
            each.output.id for each in self.graph.nodes if each.op.name == "rms_norm" and each.inputs[0].id == value.id
        }
        return not any(each.id == value.id or each.id in norms for other in later for each in other.inputs)

    def gated_linear(self, node: Node) -> None:
        source, norm = self._behind_norm(node.inputs[0])
        names, biases = (_name(node, "gate"), _name(node, "up")), (node.weights["gate_bias"], node.weights["up_bias"])
        linear = self.placer.matrix(names, biases, is_gate=True)  # type: ignore[arg-type]
        readers = [each for each in self.graph.nodes if node.outputs[0] in each.inputs]
        rounds = all(each.op.name == "linear_add" and self.placer.is_fp8((_name(each, "weight"),)) for each in readers)
        self.instructions.append(Gate(source, norm, linear, node.outputs[0].id, rounds))

    def head(self, node: Node) -> None:
        source, norm = self._behind_norm(node.inputs[0])
        self.instructions.append(Head(source, norm, self.placer.head(_name(node, "weight")), node.outputs[0].id))

    # --- producers of a value

    def _behind_norm(self, value: Value) -> tuple[int, Norm | None]:
        maker = self._maker.get(value.id)
        if maker is None or maker.op.name != "rms_norm" or maker.attrs["group"] or maker.weights["weight"] is None:
            return value.id, None
        return maker.inputs[0].id, Norm(self.placer.vector(_name(maker, "weight")), maker.attrs["eps"])

    def _back(self, value: Value) -> tuple[Node | None, Node | None, Node | None]:
        """Return the linear_split that a head comes from, and the norm and the rope in between."""
        norm = turn = None
        node = self._maker.get(value.id)
        if node is not None and node.op.name == "rope":
            turn, node = node, self._maker.get(node.inputs[0].id)
        if node is not None and node.op.name == "rms_norm" and node.attrs["group"]:
            norm, node = node, self._maker.get(node.inputs[0].id)
        return (node if node is not None and node.op.name == "linear_split" else None), norm, turn

    def _origin(self, value: Value) -> int:
        node = self._maker[value.id]
        while node.op.name in ("rope", "rms_norm"):
            value = node.inputs[0]
            node = self._maker[value.id]
        return value.id

    def _turns_of(self, rope: Node) -> RopeTables:
        """Return the cosines and sines of all positions, computed once, in float64 like the reference."""
        name, scaling = _name(rope, "frequencies"), float(rope.attrs["scaling"])
        if rope.attrs["interleaved"]:
            raise NoKernel("Rope in pairs has no kernel on this device.")
        if (name, scaling) not in self._turns:
            frequencies = self.placer.weights[name].float32()
            angles = (np.arange(self.num_positions, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
            both = ((f(angles) * scaling).astype(np.float32) for f in (np.cos, np.sin))
            cos, sin = (torch.from_numpy(each).to(self.placer.device) for each in both)
            self._turns[name, scaling] = RopeTables(cos, sin)
        return self._turns[name, scaling]


_EMIT: dict[str, Any] = {
    "embed": Lowering.embed,
    "rms_norm": Lowering.fused_into_consumer,
    "rope": Lowering.fused_into_consumer,
    "linear_split": Lowering.fused_into_consumer,
    "attention": Lowering.attention,
    "select": Lowering.select,
    "linear_add": Lowering.linear_add,
    "gated_linear": Lowering.gated_linear,
    "head": Lowering.head,
}


def look_ahead(linears: Sequence[Multiplies]) -> None:
    """Let each product prefetch the first weights of the next one; the last one those of the next step."""
    for linear, following in zip(linears, [*linears[1:], *linears[:1]], strict=True):
        linear.ahead = following.raw[:AHEAD_BYTES]


def _name(node: Node, parameter: str) -> str:
    name = node.weights[parameter]
    assert isinstance(name, str)
    return name


def _names(node: Node, parameter: str) -> tuple[Any, ...]:
    names = node.weights[parameter]
    assert isinstance(names, tuple)
    return names


def _freeing_values(instructions: list[Instruction], output: int) -> list[Instruction]:
    """Return the instructions with a Forget after the last reader of each value."""
    last: dict[int, int] = {}
    for index, each in enumerate(instructions):
        for name in ("value", "residual"):
            if hasattr(each, name):
                last[getattr(each, name)] = index
    result: list[Instruction] = []
    for index, each in enumerate(instructions):
        result.append(each)
        dead = tuple(value for value, at in last.items() if at == index and value != output)
        if dead:
            result.append(Forget(dead))
    return result
