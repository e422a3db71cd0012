"""Bamba: Llama in which most layers have a mixer of Mamba-2 instead of attention. Rope turns half of each head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ATTENTION, MLP
from quire.models.hybrid import LINEAR, attention_in_some, has_attention, has_recurrence, types_where
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES
from quire.models.mamba_blocks import (
    MAMBA2_KEYS,
    ONE_GROUP,
    PROJECTIONS2,
    UNUSED_KEYS,
    ScanConfig,
    mamba2_mixer,
    mamba2_names,
)
from quire.models.names import TensorName
from quire.models.registry import architecture
from quire.models.values import Values

WITH_ATTENTION = "attn_layer_indices"
CONFIG = LLAMA_CONFIG.override(
    reads=[*MAMBA2_KEYS, WITH_ATTENTION],
    ignores=[*UNUSED_KEYS, "z_loss_coefficient", "attn_rotary_emb"],
    defaults={
        **{"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True},
        **{"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "eos_token_id": 2},
    },
    biases={"attention_bias": ATTENTION, "mlp_bias": MLP, **PROJECTIONS2},
    rope=RopeRules(is_partial=True),
).override(fixed=ONE_GROUP)
NAMES = attention_in_some(LLAMA_NAMES).but(
    {
        **mamba2_names("mamba", has_recurrence),
        "mlp.norm": TensorName("pre_ff_layernorm", "ffn_norm", ("hidden",)),
        **{f"mlp.{word}": replace(LLAMA_NAMES.entries[f"mlp.{word}"], safetensors=f"feed_forward.{word}_proj")
           for word in ("gate", "up", "down")},
        "norm": TensorName("model.final_layernorm", "output_norm", ("hidden",)),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BambaConfig(ScanConfig):
    """Which layers have attention is a list of numbers."""

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        listed = values.integers(WITH_ATTENTION)
        types = types_where((layer not in listed for layer in range(base["num_layers"])), base, LINEAR)
        return super(BambaConfig, cls).read(base | {"layer_types": types}, values, is_gguf)


@architecture("BambaForCausalLM", model_type="bamba", names=NAMES, keys=ConfigKeys(CONFIG), config=BambaConfig)
def bamba(g: Graph, c: BambaConfig) -> Value:
    """Pre-norm decoder. Its GGUF files are those of a Granite 4 without experts."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h) if has_attention(c, layer.index) else mamba2_mixer(g, c, layer, h))
        x = g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
