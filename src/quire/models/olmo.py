"""OLMo: Llama with layer norms that have no weights, and queries, keys and values that may be clipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, PAIRED_NAMES
from quire.models.registry import architecture
from quire.models.values import Values

NAMES = PAIRED_NAMES.but({"attn.norm": None, "mlp.norm": None, "norm": None})
CONFIG = LLAMA_CONFIG.override(
    reads=["clip_qkv"],
    ignores=["mlp_bias"],
    lacks=["rms_norm_eps"],
    defaults={"rms_norm_eps": 1e-5, "eos_token_id": 50279},
)
GGUF = LLAMA_GGUF.override(
    reads=["attention.clamp_kqv"], spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OlmoConfig(ModelConfig):
    """With the limit of its queries, keys and values."""

    clip: float | None

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        key = "attention.clamp_kqv" if is_gguf else "clip_qkv"
        return cls(**base, clip=values.number(key) if key in values else None)


@architecture(
    "OlmoForCausalLM", model_type="olmo", gguf="olmo", names=NAMES, keys=ConfigKeys(CONFIG, GGUF), config=OlmoConfig
)
def olmo(g: Graph, c: OlmoConfig) -> Value:
    """Pre-norm decoder."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.layer_norm(x, None, eps=c.norm_eps), clip=c.clip))
        x = g.add(x, gated_mlp(g, layer, g.layer_norm(x, None, eps=c.norm_eps), "silu"))
    return g.logits(g.layer_norm(x, None, eps=c.norm_eps), "head")
