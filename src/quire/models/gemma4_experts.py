"""The experts of Gemma 4 26B-A4B, beside the feed-forward block of each layer."""

from __future__ import annotations

from typing import Any

from quire.graph.graph import Graph, Layer, Value
from quire.models.gemma4_config import Gemma4Config
from quire.models.moe import SHAPES
from quire.models.names import Layouts, Names, Stored, TensorName, part


def _entry(name: str | Stored, gguf: str | Stored, *shape: str, kind: str = "weight") -> TensorName:
    return TensorName(name, gguf, shape, only=Gemma4Config.has_experts, kind=kind)


def _both(name: str, index: int) -> Stored:
    return Stored(name, part(index, "expert_ffn", "expert_ffn"))


_BOTH = ("experts.gate_up_proj", "ffn_gate_up_exps.weight")  # gate, then up, of every expert
EXPERT_NAMES = {
    "mlp.dense_norm": _entry("post_feedforward_layernorm_1", "post_ffw_norm_1", "hidden"),
    "mlp.router": _entry("router.proj", "ffn_gate_inp", "experts", "hidden"),
    "mlp.router_norm": _entry("router.scale", "ffn_gate_inp.scale", "hidden", kind=""),
    "mlp.expert_scale": _entry("router.per_expert_scale", "ffn_down_exps.scale", "experts", kind=""),
    "experts.norm": _entry("pre_feedforward_layernorm_2", "pre_ffw_norm_2", "hidden"),
    "experts.gate": _entry(_both(_BOTH[0], 0), _both(_BOTH[1], 0), *SHAPES["gate"], kind=""),
    "experts.up": _entry(_both(_BOTH[0], 1), _both(_BOTH[1], 1), *SHAPES["up"], kind=""),
    "experts.down": _entry("experts.down_proj", "ffn_down_exps.weight", *SHAPES["down"], kind=""),
    "experts.post_norm": _entry("post_feedforward_layernorm_2", "post_ffw_norm_2", "hidden"),
}
WORDS = ("gate", "up", "down")
# Files of quantized models may have a tensor for each expert, and GGUF files a stack for gate and one for up.
LAYOUTS: Layouts = {
    ".experts.gate_proj.weight": {
        f"experts.{word}": _entry(f"experts.{word}_proj", f"ffn_{word}_exps", *SHAPES[word]) for word in WORDS
    },
    ".ffn_gate_exps.weight": {f"experts.{word}": Stored(f"ffn_{word}_exps.weight") for word in WORDS},
}


def with_expert_names(names: Names) -> Names:
    """Add the names of experts to those of a dense model."""
    return names.but(EXPERT_NAMES, layouts=LAYOUTS, stacked=frozenset(f".experts.*.{word}_proj" for word in WORDS))


def with_expert_block(g: Graph, c: Gemma4Config, layer: Layer, x: Value, dense: Value) -> Value:
    """Add the answer of x's experts to that of the feed-forward block, both normed."""
    if not c.num_experts:
        return dense
    routed = g.scale(g.rms_norm(x, layer["mlp.router_norm"], eps=c.norm_eps), c.hidden**-0.5)
    attrs: dict[str, Any] = {"top": c.top, "scoring": "softmax", "renormalize": True}
    choice = g.route(routed, layer["mlp.router"], expert_scale=layer["mlp.expert_scale"], **attrs)
    names = (layer["experts.gate"], layer["experts.up"], layer["experts.down"])
    h = g.experts(g.rms_norm(x, layer["experts.norm"], eps=c.norm_eps), choice, names, kind="gelu_tanh")
    dense = g.rms_norm(dense, layer["mlp.dense_norm"], eps=c.norm_eps)
    return g.add(dense, g.rms_norm(h, layer["experts.post_norm"], eps=c.norm_eps))
