"""LFM2: attention in some layers, gated short convolutions in the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.gated_conv import CONV_CONFIG, CONV_GGUF, CONV_NAMES, convolve, read_conv
from quire.models.hybrid import has_attention
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture
from quire.models.values import Values

CONFIG = CONV_CONFIG.override(
    reads=["full_attn_idxs", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of"],
    synonyms={"block_ff_dim": "intermediate_size"},
    defaults={"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lfm2Config(ModelConfig):
    """With the width of convolutions."""

    taps: int

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        ffn = base["ffn"] if is_gguf else _ffn(base["ffn"], values)
        return cls(**{**base, **read_conv(base, values, is_gguf), "ffn": ffn})

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return {**ModelConfig.sizes(self, layer), "taps": self.taps}


def _ffn(given: int, values: Values) -> int:
    """The width of the feed-forward block: two thirds of what the file says, rounded up, unless that is off."""
    if not values.flag("block_auto_adjust_ff_dim"):
        return given
    width, multiple = int(2 * given / 3), values.size("block_multiple_of")
    return -(-int(values.number("block_ffn_dim_multiplier") * width) // multiple) * multiple


@architecture(
    "Lfm2ForCausalLM",
    model_type="lfm2",
    gguf="lfm2",
    names=CONV_NAMES,
    keys=ConfigKeys(CONFIG, CONV_GGUF),
    config=Lfm2Config,
)
def lfm2(g: Graph, c: Lfm2Config) -> Value:
    """Pre-norm decoder. Queries and keys are normed head by head."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        mixed = attend(g, c, layer, h, head_norm="rms") if has_attention(c, layer.index) else convolve(g, layer, h)
        x = g.add(x, mixed)
        x = g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
