"""Blocks that many architectures share. A model that differs draws its own with the graph's methods."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack

from quire.graph.graph import Graph, Layer, Value
from quire.models.config import ModelConfig
from quire.models.moe import MoeConfig
from quire.ops.cache import PagedKV

HeadNorm = Literal["rms", "layer", "wide"] | None  # wide: RMS of all heads together


class AttentionChoices(TypedDict, total=False):
    """How an attention block differs from Llama's."""

    clip: float | None  # limit of q, k and v
    head_norm: HeadNorm  # of q and k
    norms_last: bool  # norms of heads follow rope
    rotates: bool  # False: no rope
    gated: bool  # the answer is multiplied with the sigmoid of `attn.gate`
    interleaved: bool  # rope rotates neighbours, not halves
    position_scale: tuple[float, int] | None  # beta and span of the factor of queries
    scale: float  # default: 1 / √head_dim
    softcap: float | None
    sinks: str | None
    slopes: str | None
    distances: str | None  # biases by distance, as T5 has them


def attend(g: Graph, c: ModelConfig, layer: Layer, h: Value, **choices: Unpack[AttentionChoices]) -> Value:
    """Compute q, k and v of h, norms of heads, rope, attention, and the product with `attn.out`."""
    limit = choices.pop("clip", None)
    q, k, v = (g.clamp(g.linear(h, layer[f"attn.{word}"]), limit) for word in "qkv")
    head_norm, interleaved = choices.pop("head_norm", None), choices.pop("interleaved", False)
    norms_last, position_scale = choices.pop("norms_last", False), choices.pop("position_scale", None)
    if not norms_last:
        q, k = _norm_both(g, c, layer, (q, k), head_norm)
    if choices.pop("rotates", True):
        q, k = (rotate(g, c, layer, x, interleaved=interleaved) for x in (q, k))
    if norms_last:
        q, k = _norm_both(g, c, layer, (q, k), head_norm)
    if position_scale is not None:
        q = g.scale_by_position(q, beta=position_scale[0], span=position_scale[1])
    cache = g.cache(PagedKV(c.num_kv_heads, c.head_dim, c.head_dim, c.windows[layer.index]))
    choices.setdefault("scale", c.head_dim**-0.5)
    is_gated = choices.pop("gated", False)
    out = g.attention(q, k, v, cache, **choices)
    if is_gated:
        out = g.multiply(out, g.activation(g.linear(h, layer["attn.gate"]), "sigmoid"))
    return g.linear(out, layer["attn.out"])


def _norm_both(
    g: Graph, c: ModelConfig, layer: Layer, both: tuple[Value, Value], kind: HeadNorm
) -> tuple[Value, Value]:
    """Norm the heads of q and k."""
    if kind is None:
        return both
    words = (layer["attn.q_norm"], layer["attn.k_norm"])
    q, k = (
        norm_heads(g, x, word, kind, eps=c.norm_eps, head_dim=c.head_dim) for x, word in zip(both, words, strict=True)
    )
    return q, k


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


def gated_mlp(g: Graph, layer: Layer, h: Value, kind: str, block: str = "mlp") -> Value:
    """activation(gate(h)) * up(h), then down."""
    gate = g.activation(g.linear(h, layer[f"{block}.gate"]), kind)
    return g.linear(g.multiply(gate, g.linear(h, layer[f"{block}.up"])), layer[f"{block}.down"])


def mlp(g: Graph, layer: Layer, h: Value, kind: str, block: str = "mlp") -> Value:
    """activation(up(h)), then down."""
    return g.linear(g.activation(g.linear(h, layer[f"{block}.up"]), kind), layer[f"{block}.down"])


def moe_mlp(g: Graph, c: MoeConfig, layer: Layer, h: Value, kind: str, **routing: Any) -> Value:
    """The experts of h, plus the shared one where the layer has it; in a dense layer, its feed-forward block.

    `routing`: attributes of `route`, where they are not softmax over all experts and the configuration's numbers.
    """
    if not c.sparse[layer.index]:
        return gated_mlp(g, layer, h, kind)
    return with_shared_expert(g, c, layer, h, kind, experts_of(g, c, layer, h, {"kind": kind}, **routing))


def experts_of(g: Graph, c: MoeConfig, layer: Layer, h: Value, activation: dict[str, Any], **routing: Any) -> Value:
    """The weighted sum of each token's experts. `activation`: attributes of `experts`."""
    numbers = {"top": c.top, "scoring": "softmax", "renormalize": c.renormalize, "factor": c.factor}
    correction = layer["mlp.correction"] if layer["mlp.correction"] in g.shapes else None
    choice = g.route(h, layer["mlp.router"], correction=correction, **{**numbers, **routing})
    names = (layer["experts.gate"], layer["experts.up"], layer["experts.down"])
    return g.experts(h, choice, names, **activation)


def with_shared_expert(g: Graph, c: MoeConfig, layer: Layer, h: Value, kind: str, routed: Value) -> Value:
    """Add the expert that all tokens use, times the sigmoid of `shared.router` if the model has that."""
    if not c.shared_ffn:
        return routed
    shared = gated_mlp(g, layer, h, kind, "shared")
    if layer["shared.router"] in g.shapes:
        shared = g.scale_rows(shared, g.activation(g.linear(h, layer["shared.router"]), "sigmoid"))
    return g.add(routed, shared)
