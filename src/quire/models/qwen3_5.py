"""Qwen3.5 and Qwen3.6, their text model: the gated delta rule in most layers, gated attention in the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import gated_mlp
from quire.models.config import ModelConfig
from quire.models.delta import (
    DELTA_CONFIG,
    DELTA_GGUF,
    DELTA_NAMES,
    DeltaHeads,
    attend_or_recur,
    read_delta,
)
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture
from quire.models.values import Values

CONFIG = DELTA_CONFIG.override(defaults={"num_key_value_heads": 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35Config(ModelConfig):
    """With the numbers of the delta rule."""

    delta: DeltaHeads

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**{**base, **read_delta(base, values, is_gguf, is_tiled=True)})

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**ModelConfig.sizes(self, layer), **self.delta.sizes()}


def qwen3_5_layer(g: Graph, c: Qwen35Config, layer: Layer, x: Value) -> Value:
    """Draw a layer."""
    x = g.add(x, attend_or_recur(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))
    return g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))


@architecture(
    "Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    gguf="qwen35",
    names=DELTA_NAMES,
    keys=ConfigKeys(CONFIG, DELTA_GGUF),
    config=Qwen35Config,
)
def qwen3_5(g: Graph, c: Qwen35Config) -> Value:
    """Pre-norm decoder with norms of 1 + w."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = qwen3_5_layer(g, c, layer, x)
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
