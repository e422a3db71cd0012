"""Odd graphs whose convolutions, states and norms have gates that something else reads too."""

from __future__ import annotations

from quire.graph.graph import Value
from quire.ops.cache import State
from tests.graph.odd_registry import odd
from tests.graph.sketch import DIM, Sketch

HEADS, KEY, VALUE = 2, 8, 8


def _delta(s: Sketch, h: Value, decay: Value, beta: Value) -> Value:
    q, k, v = (s.linear(h, HEADS * size) for size in (KEY, KEY, VALUE))
    state = State((HEADS, KEY, VALUE))
    return s.linear(s.graph.delta_rule((q, k, v), decay, beta, state, num_heads=HEADS, scale=0.5, eps=1e-6), DIM)


def _decay(s: Sketch, h: Value) -> Value:
    return s.graph.log_decay(s.linear(h, HEADS), s.weight(HEADS, mean=-1.0), s.weight(HEADS))


@odd
def gates_of_states_that_are_read_again(s: Sketch) -> None:
    """A convolution beside its activation; a delta rule whose decay, or whose beta, is read again, or has a tanh."""
    x, g = s.embed(), s.graph
    conv = g.short_conv(x, s.matrix(DIM, 3))
    x = g.add(conv, g.activation(conv, "silu"))
    decay, beta = _decay(s, x), g.activation(s.linear(x, HEADS), "sigmoid")
    x = g.add(g.add(x, s.linear(decay, DIM)), _delta(s, x, decay, beta))
    decay, beta = _decay(s, x), g.activation(s.linear(x, HEADS), "sigmoid")
    x = g.add(g.add(x, s.linear(beta, DIM)), _delta(s, x, decay, beta))
    s.logits(g.add(x, _delta(s, x, _decay(s, x), g.activation(s.linear(x, HEADS), "tanh"))))


@odd
def gates_of_norms_that_are_read_again(s: Sketch) -> None:
    """A norm, a gate or their product is read twice; a norm has no weight; a gate is multiplied with itself."""
    x, g = s.embed(), s.graph
    for has_weight in (True, False):
        gate, weight = g.activation(s.linear(x, DIM), "silu"), s.weight(DIM) if has_weight else None
        normed = g.rms_norm(x, weight, eps=1e-3)
        x = g.add(g.multiply(normed, gate), normed if has_weight else x)  # the norm is read again, or has no weight
        product = g.multiply(x, g.activation(s.linear(x, DIM), "silu"))
        x = g.add(g.rms_norm(product, weight, eps=1e-3), product if has_weight else x)
    gate = g.activation(s.linear(x, DIM), "silu")
    x = g.add(g.multiply(g.rms_norm(x, s.weight(DIM), eps=1e-3), gate), gate)
    gate = g.activation(s.linear(x, DIM), "sigmoid")
    x = g.add(g.rms_norm(g.multiply(x, gate), s.weight(DIM), eps=1e-3), gate)
    s.logits(g.rms_norm(g.multiply(gate, gate), s.weight(DIM), eps=1e-3))
