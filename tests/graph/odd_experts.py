"""Odd graphs with experts."""

from __future__ import annotations

from typing import Any

from quire.graph.graph import ExpertChoice, Value
from tests.graph.odd_registry import odd
from tests.graph.sketch import DIM, Sketch

EXPERTS, WIDTH = 6, 32


def _route(s: Sketch, h: Value, **attrs: Any) -> ExpertChoice:
    how = {"top": 2, "scoring": "softmax", "renormalize": True, **attrs}
    return s.graph.route(h, s.weight(EXPERTS, h.dim, spread=0.5), **how)


def _experts(s: Sketch, h: Value, choice: ExpertChoice) -> Value:
    gate, up, down = (
        s.weight(EXPERTS, *shape, spread=shape[-1] ** -0.5) for shape in ((WIDTH, DIM), (WIDTH, DIM), (DIM, WIDTH))
    )
    return s.graph.experts(h, choice, (gate, up, down), kind="silu")


def _attended(s: Sketch) -> Value:
    x = s.embed()
    return s.graph.add(x, s.attention(s.norm(x), s.frequencies()))


@odd
def experts(s: Sketch) -> None:
    """As Qwen3 draws them, in two layers; the residual comes first, then last."""
    x, table = s.embed(), s.frequencies()
    x = s.graph.add(x, s.attention(s.norm(x), table))
    h = s.norm(x)
    x = s.graph.add(x, _experts(s, h, _route(s, h)))
    x = s.graph.add(x, s.attention(s.norm(x), table))
    h = s.norm(x)
    s.logits(s.graph.add(_experts(s, h, _route(s, h)), x))


@odd
def shared_experts(s: Sketch) -> None:
    """A dense block beside the experts, gated by one number for each token."""
    x = _attended(s)
    h = s.norm(x)
    shared = s.graph.scale_rows(s.mlp(h), s.graph.activation(s.linear(h, 1), "sigmoid"))
    s.logits(s.graph.add(x, s.graph.add(_experts(s, h, _route(s, h)), shared)))


@odd
def a_router_that_reads_a_norm_of_groups(s: Sketch) -> None:
    x = _attended(s)
    h = s.graph.rms_norm(x, s.scales(16), eps=1e-5, group=16)
    s.logits(s.graph.add(x, _experts(s, h, _route(s, h))))


@odd
def a_router_that_reads_the_residual(s: Sketch) -> None:
    """Its experts read the norm."""
    x = _attended(s)
    s.logits(s.graph.add(x, _experts(s, s.norm(x), _route(s, x))))


@odd
def two_routers_of_one_norm(s: Sketch) -> None:
    x = _attended(s)
    h = s.norm(x)
    one, other = _route(s, h), _route(s, h, scoring="sigmoid")
    s.logits(s.graph.add(s.graph.add(x, _experts(s, h, one)), _experts(s, h, other)))


@odd
def experts_that_are_read_twice(s: Sketch) -> None:
    x = _attended(s)
    h = s.norm(x)
    answer = _experts(s, h, _route(s, h))
    s.logits(s.graph.multiply(s.graph.add(x, answer), answer))


@odd
def experts_added_to_what_they_read(s: Sketch) -> None:
    x = s.norm(_attended(s))
    s.logits(s.graph.add(x, _experts(s, x, _route(s, x))))


@odd
def experts_chosen_before_attention(s: Sketch) -> None:
    """Tokens without logits are dropped between the choice and the experts."""
    x = s.norm(s.embed())
    choice = _route(s, x)
    x = s.graph.add(x, s.attention(s.norm(x), s.frequencies()))
    s.logits(s.graph.add(x, _experts(s, s.norm(x), choice)))
