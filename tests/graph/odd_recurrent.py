"""Odd graphs with recurrent layers."""

from __future__ import annotations

from quire.graph.graph import Value
from quire.ops.cache import State
from tests.graph.odd_registry import odd
from tests.graph.sketch import DIM, Sketch


def _conv(s: Sketch, x: Value, taps: int = 4, *, bias: bool = False) -> Value:
    return s.graph.short_conv(x, s.matrix(x.dim, taps, bias=bias))


def _delta(s: Sketch, h: Value, state: State, num_heads: int, *, by_channel: bool = False, **attrs: object) -> Value:
    """The gated delta rule of a layer, with the product after it."""
    heads, key_dim, value_dim = state.shape
    qkv = tuple(s.linear(h, size) for size in (num_heads * key_dim, num_heads * key_dim, heads * value_dim))
    width = heads * (key_dim if by_channel else 1)
    decay = s.graph.log_decay(s.linear(h, width), s.weight(heads, mean=-1.0), s.weight(width))
    beta = s.graph.activation(s.linear(h, heads), "sigmoid")
    attrs = {"num_heads": num_heads, "scale": key_dim**-0.5, "eps": 1e-6, **attrs}
    return s.linear(s.graph.delta_rule(qkv, decay, beta, state, **attrs), DIM)  # type: ignore[arg-type]


def _scan(s: Sketch, h: Value, state: State, groups: int = 1, *, is_plain: bool = False, **attrs: float) -> Value:
    """The scan of a layer, after a convolution, with the product after it."""
    heads, dim, size = state.shape
    channels, width = heads * dim, groups * size
    xbc = s.graph.activation(_conv(s, s.linear(h, channels + 2 * width), bias=not is_plain), "silu")
    parts = [s.graph.columns(xbc, *place) for place in ((0, channels), (channels, width), (channels + width, width))]
    rate = s.weight(*((heads, size) if dim == 1 else (heads,)), mean=-1.0, spread=0.2)
    names = (rate, None if is_plain else s.weight(heads), None if is_plain else s.weight(heads))
    return s.linear(s.graph.state_scan(tuple(parts), s.linear(h, heads), state, names, **attrs), DIM)  # type: ignore[arg-type]


@odd
def short_convolutions(s: Sketch) -> None:
    """As LFM2 draws them: between two products of each number, and without a bias. Then one of its own input."""
    x = s.embed()
    for taps in (3, 2):
        h = s.norm(x)
        b, c, inner = (s.linear(h, DIM) for _ in range(3))
        x = s.graph.add(x, s.linear(s.graph.multiply(c, _conv(s, s.graph.multiply(b, inner), taps)), DIM))
    s.logits(s.graph.add(x, _conv(s, x, 5, bias=True)))


@odd
def convolutions_with_another_reader_or_activation(s: Sketch) -> None:
    """A convolution whose sum is read beside its activation, then activated ones that are read twice."""
    x = s.embed()
    mixed = _conv(s, x)
    x = s.graph.add(mixed, s.graph.activation(mixed, "silu"))
    for kind in ("silu", "gelu"):
        active = s.graph.activation(_conv(s, s.norm(x)), kind)
        x = s.graph.add(s.graph.multiply(active, x), s.graph.activation(active, "silu"))
    s.logits(x)


@odd
def two_layers_of_the_delta_rule(s: Sketch) -> None:
    """Of different shapes, with value heads that share a key head, and no norm of queries and keys in the second."""
    x = s.embed()
    x = s.graph.add(x, _delta(s, s.norm(x), State((4, 16, 40)), 2))
    s.logits(s.graph.add(x, _delta(s, s.norm(x), State((2, 24, 16)), 2, eps=None, scale=0.1)))


@odd
def a_state_between_attention_layers(s: Sketch) -> None:
    """Caches of three kinds, and a decay of each channel."""
    x, table = s.embed(), s.frequencies()
    x = s.layer(x, table)
    x = s.graph.add(x, _delta(s, s.norm(x), State((2, 16, 32)), 2, by_channel=True))
    x = s.graph.add(x, s.latent_attention(s.norm(x), table))
    s.logits(s.layer(x, table))


@odd
def a_gated_norm_after_a_state(s: Sketch) -> None:
    """As Qwen draws it: activated convolution of joined queries, keys and values; norm of heads times silu."""
    x = s.embed()
    h = s.norm(x)
    z = s.linear(h, DIM)
    joined = s.graph.activation(_conv(s, s.linear(h, 3 * DIM)), "silu")
    q, k, v = (s.graph.columns(joined, DIM * i, DIM) for i in range(3))
    decay = s.graph.log_decay(s.linear(h, 4), s.weight(4, mean=-1.0), s.weight(4))
    beta = s.graph.activation(s.linear(h, 4), "sigmoid")
    seen = s.graph.delta_rule((q, k, v), decay, beta, State((4, 16, 16)), num_heads=4, scale=0.25, eps=1e-6)
    normed = s.graph.rms_norm(seen, s.scales(16), eps=1e-5, group=16)
    s.logits(s.graph.add(x, s.linear(s.graph.multiply(normed, s.graph.activation(z, "silu")), DIM)))


@odd
def scans_of_both_kinds(s: Sketch) -> None:
    """Mamba-2 with two groups and bounded steps, then Mamba; the last without bias and skip."""
    x = s.embed()
    x = s.graph.add(x, _scan(s, s.norm(x), State((4, 12, 16)), 2, low=0.1, high=0.9))
    x = s.graph.add(x, _scan(s, s.norm(x), State((48, 1, 8))))
    s.logits(s.graph.add(x, _scan(s, s.norm(x), State((2, 32, 24)), is_plain=True)))
