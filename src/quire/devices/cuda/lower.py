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

from .instructions import AddProduct, Attend, Caches, Embed, Forget, Gate, Head, Instruction, Narrow, Norm
from .linear import Multiplies
from .weights import Placer

AHEAD_BYTES = 4 << 20  # more would evict from the cache what the running product still needs


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
        self._tail = max((i for i, node in enumerate(graph.nodes) if node.op.name == "attention"), default=-1)

    def walk(self) -> list[Instruction]:
        """Return all instructions, including those that free values."""
        for index, node in enumerate(self.graph.nodes):
            emit = _EMIT.get(node.op.name)
            if emit is None:
                raise NoKernel(f"The op {node.op.name} has no kernel on this device.")
            emit(self, node)
            if index == self._tail:
                self._narrow(index)
        look_ahead([each.linear for each in self.instructions if isinstance(each, Attend | AddProduct | Gate | Head)])
        return _freeing_values(self.instructions, self.graph.output.id)

    def _narrow(self, last: int) -> None:
        late = {value.id for node in self.graph.nodes[last + 1 :] for value in node.inputs}
        made = {value.id for node in self.graph.nodes[: last + 1] for value in node.outputs}
        self.instructions.append(Narrow(tuple(sorted(late & made))))

    # --- ops

    def embed(self, node: Node) -> None:
        self.instructions.append(Embed(self.placer.table(_name(node, "table")), node.outputs[0].id))

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
        source, norm = self._behind_norm(split.inputs[0])
        linear = self.placer.matrix(_names(split, "weights"), _names(split, "biases"))
        head_norm = None
        if q_norm is not None and k_norm is not None:
            of_q, of_k = (self.placer.vector(_name(each, "weight")) for each in (q_norm, k_norm))
            head_norm = HeadNorm(of_q, of_k, q_norm.attrs["eps"])
        heads = Heads(q.dim // cache.head_dim, cache.num_heads, cache.head_dim)
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
            )
        )

    def add(self, node: Node) -> None:
        for residual, product in (node.inputs, node.inputs[::-1]):
            maker = self._maker.get(product.id)
            if maker is not None and maker.op.name == "linear" and self._num_readers[product.id] == 1:
                linear = self.placer.matrix((_name(maker, "weight"),), (maker.weights["bias"],))  # type: ignore[arg-type]
                out = node.outputs[0].id
                self.instructions.append(AddProduct(maker.inputs[0].id, linear, residual.id, out))
                return
        raise NoKernel("An add of which no side is a linear has no kernel on this device.")

    def silu_gate(self, node: Node) -> None:
        source, norm = self._behind_norm(node.inputs[0])
        names, biases = (_name(node, "gate"), _name(node, "up")), (node.weights["gate_bias"], node.weights["up_bias"])
        linear = self.placer.matrix(names, biases, is_gate=True)  # type: ignore[arg-type]
        readers = [each for each in self.graph.nodes if node.outputs[0] in each.inputs]
        rounds = all(each.op.name == "linear" and self.placer.is_fp8((_name(each, "weight"),)) for each in readers)
        self.instructions.append(Gate(source, norm, linear, node.outputs[0].id, rounds))

    def logits(self, node: Node) -> None:
        source, norm = self._behind_norm(node.inputs[0])
        self.instructions.append(Head(source, norm, self.placer.head(_name(node, "weight")), node.outputs[0].id))

    # --- producers of a value

    def _behind_norm(self, value: Value) -> tuple[int, Norm | None]:
        maker = self._maker.get(value.id)
        if maker is None or maker.op.name != "rms_norm":
            return value.id, None
        return maker.inputs[0].id, Norm(self.placer.vector(_name(maker, "weight")), maker.attrs["eps"])

    def _back(self, value: Value) -> tuple[Node | None, Node | None, Node | None]:
        """Return the linear_split that a head comes from, and the norm and the rope in between."""
        norm = turn = None
        node = self._maker.get(value.id)
        if node is not None and node.op.name == "rope":
            turn, node = node, self._maker.get(node.inputs[0].id)
        if node is not None and node.op.name == "rms_norm_heads":
            norm, node = node, self._maker.get(node.inputs[0].id)
        return (node if node is not None and node.op.name == "linear_split" else None), norm, turn

    def _origin(self, value: Value) -> int:
        node = self._maker[value.id]
        while node.op.name in ("rope", "rms_norm_heads"):
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
            self._turns[name, scaling] = RopeTables(*(torch.from_numpy(each).to(self.placer.device) for each in both))
        return self._turns[name, scaling]


_EMIT: dict[str, Any] = {
    "embed": Lowering.embed,
    "rms_norm": Lowering.fused_into_consumer,
    "rms_norm_heads": Lowering.fused_into_consumer,
    "rope": Lowering.fused_into_consumer,
    "linear": Lowering.fused_into_consumer,
    "linear_split": Lowering.fused_into_consumer,
    "attention": Lowering.attention,
    "add": Lowering.add,
    "silu_gate": Lowering.silu_gate,
    "logits": Lowering.logits,
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
