"""Blocks that many architectures share. A model that differs draws its own with the graph's methods."""

from __future__ import annotations

from typing import Any, Literal

from quire.graph.graph import Graph, Layer, Value
from quire.models.config import ModelConfig
from quire.ops.cache import PagedKV

HeadNorm = Literal["rms", "layer", "wide"] | None  # wide: RMS of all heads together


def attend(
    g: Graph, c: ModelConfig, layer: Layer, h: Value, *, head_norm: HeadNorm = None, rotates: bool = True, **extras: Any
) -> Value:
    """q, k and v of h, norms of heads, rope, attention, and the product with `attn.out`.

    `extras`: clip (of q, k and v), interleaved (of rope), scale (default: 1 / √head_dim), softcap, and names of sinks
    and slopes.
    """
    limit = extras.pop("clip", None)
    q, k, v = (g.clamp(g.linear(h, layer[f"attn.{word}"]), limit) for word in "qkv")
    if head_norm is not None:
        q, k = (
            norm_heads(g, x, layer[f"attn.{word}_norm"], head_norm, eps=c.norm_eps, head_dim=c.head_dim)
            for x, word in ((q, "q"), (k, "k"))
        )
    interleaved = extras.pop("interleaved", False)
    if rotates:
        q, k = (rotate(g, c, layer, x, interleaved=interleaved) for x in (q, k))
    cache = g.cache(PagedKV(c.num_kv_heads, c.head_dim, c.head_dim, c.windows[layer.index]))
    scale = extras.pop("scale", c.head_dim**-0.5)
    return g.linear(g.attention(q, k, v, cache, scale=scale, **extras), layer["attn.out"])


def norm_heads(g: Graph, x: Value, weight: str, kind: HeadNorm, *, eps: float, head_dim: int) -> Value:
    """Norm each head of x, or all of x."""
    if kind == "wide":
        return g.rms_norm(x, weight, eps=eps)
    norm = g.rms_norm if kind == "rms" else g.layer_norm
    return norm(x, weight, eps=eps, group=head_dim)


def rotate(g: Graph, c: ModelConfig, layer: Layer, x: Value, *, interleaved: bool = False) -> Value:
    """Rope of every head of x, with the frequencies of the layer's type."""
    kind = c.rope_of(layer.index)
    scaling = c.ropes[kind].scaling
    return g.rope(x, f"rope.{kind}", head_dim=c.head_dim, scaling=scaling, interleaved=interleaved)


def gated_mlp(g: Graph, layer: Layer, h: Value, kind: str) -> Value:
    """activation(gate(h)) * up(h), then down."""
    gate = g.activation(g.linear(h, layer["mlp.gate"]), kind)
    return g.linear(g.multiply(gate, g.linear(h, layer["mlp.up"])), layer["mlp.down"])


def mlp(g: Graph, layer: Layer, h: Value, kind: str) -> Value:
    """activation(up(h)), then down."""
    return g.linear(g.activation(g.linear(h, layer["mlp.up"]), kind), layer["mlp.down"])
