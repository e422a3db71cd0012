"""Granite: Llama with factors on embeddings, scores, residuals and logits."""

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

FACTORS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
GGUF_FACTORS = dict(zip(FACTORS, ("embedding_scale", "attention.scale", "residual_scale", "logit_scale"), strict=True))
KEYS = ConfigKeys(
    LLAMA_CONFIG.override(reads=FACTORS, defaults=dict.fromkeys(FACTORS, 1.0)),
    LLAMA_GGUF.override(reads=GGUF_FACTORS.values(), defaults=dict.fromkeys(GGUF_FACTORS.values(), 1.0)),
)


def factors(values: Values, is_gguf: bool, scale: float | None = None) -> dict[str, Any]:
    """Read the four factors. `scale`: that of scores, if the file may lack it."""
    keys = {name: GGUF_FACTORS[name] if is_gguf else name for name in FACTORS}
    return {name: values.number(keys[name], scale if name == "attention_multiplier" else None) for name in FACTORS}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteConfig(ModelConfig):
    """With its four factors."""

    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**base, **factors(values, is_gguf))


@architecture(
    "GraniteForCausalLM", model_type="granite", gguf="granite", names=PAIRED_NAMES, keys=KEYS, config=GraniteConfig
)
def granite(g: Graph, c: GraniteConfig) -> Value:
    """Pre-norm decoder; every block's output is scaled before it is added."""
    x = g.scale(g.embed("embed"), c.embedding_multiplier)
    for layer in g.layers(c.num_layers):
        h = attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), scale=c.attention_multiplier)
        x = g.add(x, g.scale(h, c.residual_multiplier))
        h = gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu")
        x = g.add(x, g.scale(h, c.residual_multiplier))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", factor=1.0 / c.logits_scaling)
