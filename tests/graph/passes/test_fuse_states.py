"""Fusion of recurrent layers: what is fused gives the same numbers, and what something else reads is not fused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire.graph.graph import Graph, Value
from quire.graph.interpret import Interpreter
from quire.graph.passes.fuse import RULES
from quire.graph.passes.narrow import narrow_tail
from quire.graph.passes.rewrite import rewrite
from quire.graph.weight import Weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import State
from quire.ops.registry import relative_error
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = pytest.mark.pure

DIM, HEADS, KEY_HEADS, KEY, VALUE = 24, 4, 2, 4, 6
SHAPES = {
    "embed": (20, DIM), "head": (20, DIM), "kernel": (DIM, 3), "kernel.bias": (DIM,), "norm": (VALUE,),
    "gate": (DIM, DIM), "q": (KEY_HEADS * KEY, DIM), "k": (KEY_HEADS * KEY, DIM), "v": (HEADS * VALUE, DIM),
    "decay": (HEADS, DIM), "beta": (HEADS, DIM), "rate": (HEADS,), "shift": (HEADS,),
}  # fmt: skip
BATCH = Batch.of([RowPart([3, 1, 4, 1, 5], 0, [0]), RowPart([9, 2], 0, [1])], 16)
Draw = Callable[[Graph, Value], Value]


def weights() -> dict[str, Weight]:
    rng, found = np.random.default_rng(1), {}
    for name, shape in SHAPES.items():
        numbers = rng.standard_normal(shape, np.float32)
        tensor = EncodedTensor.of(name, -np.abs(numbers) if name == "rate" else numbers, "f32")
        found[name] = Weight(name, tensor.shape, tensor.format, tensor)
    return found


def fused_ops(draw: Draw) -> list[str]:
    """Fuse all that there is a rule for, and check that the numbers are the same. Return the ops without the frame."""
    graph = Graph.over(weights())
    graph.logits(draw(graph, graph.embed("embed")), "head")
    whole = rewrite(narrow_tail(graph), RULES, lambda node: True)
    found, right = (Interpreter(each, weights(), 4).run(BATCH) for each in (whole, graph))
    assert relative_error(found, right) < 1e-5
    return [node.op.name for node in whole.nodes if node.op.name not in ("embed", "select", "head")]


def recur(g: Graph, x: Value, kind: str = "sigmoid") -> Value:
    qkv = (g.linear(x, "q"), g.linear(x, "k"), g.linear(x, "v"))
    decay, beta = g.log_decay(g.linear(x, "decay"), "rate", "shift"), g.activation(g.linear(x, "beta"), kind)
    state = State((HEADS, KEY, VALUE))
    return g.delta_rule(qkv, decay, beta, state, num_heads=KEY_HEADS, scale=0.5, eps=1e-6)


def test_a_convolution_is_fused_with_its_activation():
    def draw(g: Graph, x: Value) -> Value:
        return g.short_conv(g.activation(g.short_conv(x, "kernel"), "silu"), "kernel")

    assert fused_ops(draw) == ["activated_short_conv", "short_conv"]


def test_a_convolution_that_is_read_twice_is_not_fused():
    def draw(g: Graph, x: Value) -> Value:
        conv = g.short_conv(x, "kernel")
        return g.short_conv(g.add(conv, g.activation(conv, "silu")), "kernel")

    assert fused_ops(draw) == ["short_conv", "activation", "add", "short_conv"]


def test_the_delta_rule_is_fused_with_its_gates_and_all_its_products_are_one():
    assert fused_ops(recur) == ["linear_split", "gated_delta_rule"]


def test_the_delta_rule_with_another_activation_is_not_fused():
    assert "delta_rule" in fused_ops(lambda g, x: recur(g, x, "tanh"))


@pytest.mark.parametrize("is_swapped", [False, True])
@pytest.mark.parametrize("gates_first", [False, True])
def test_a_norm_is_fused_with_its_gate(gates_first: bool, is_swapped: bool):
    def draw(g: Graph, x: Value) -> Value:
        gate = g.activation(g.linear(x, "gate"), "silu")
        h = x if gates_first else g.rms_norm(x, "norm", eps=1e-3, group=VALUE)
        h = g.multiply(gate, h) if is_swapped else g.multiply(h, gate)
        return g.rms_norm(h, "norm", eps=1e-3, group=VALUE) if gates_first else h

    assert fused_ops(draw) == ["linear", "gated_norm"]


def test_a_norm_without_a_weight_is_not_fused_with_its_gate():
    def draw(g: Graph, x: Value) -> Value:
        return g.multiply(g.rms_norm(x, None, eps=1e-3, group=VALUE), g.activation(g.linear(x, "gate"), "silu"))

    assert "gated_norm" not in fused_ops(draw)
