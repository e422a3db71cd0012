"""Granite-MoE: Granite with experts, chosen by their logits, and in GraniteMoeShared one that all tokens use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.config import ATTENTION
from quire.models.granite import FACTORS, GGUF_FACTORS, factors
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, PAIRED_NAMES
from quire.models.moe import CONFIG_KEYS, FUSED_GATE_UP, GGUF_KEYS, TRAINING_KEYS, MoeConfig, fused_stacks, with_shared
from quire.models.names import Stored, TensorName, part
from quire.models.registry import architecture
from quire.models.values import Values

BLOCK = "block_sparse_moe"
GATE, UP = (Stored("shared_mlp.input_linear", part(i, "shared_ffn", "shared_ffn")) for i in range(2))
BASE = (
    with_shared(PAIRED_NAMES, "shared_mlp").marked("shared.gate", safetensors=GATE).marked("shared.up", safetensors=UP)
)
NAMES = BASE.marked("shared.down", safetensors="shared_mlp.output_linear").but(
    {
        **dict.fromkeys(("mlp.gate", "mlp.up", "mlp.down")),
        **fused_stacks((f"{BLOCK}.input_linear", f"{BLOCK}.output_linear"), kind="weight"),
        "mlp.router": TensorName(f"{BLOCK}.router.layer", "ffn_gate_inp", ("experts", "hidden")),
    },
    layouts={
        **FUSED_GATE_UP,
        f"{BLOCK}.router.weight": {"mlp.router": Stored(f"{BLOCK}.router")},
        f"{BLOCK}.experts.gate_up_proj": fused_stacks((f"{BLOCK}.experts.gate_up_proj", f"{BLOCK}.experts.down_proj")),
    },
)
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, *FACTORS],
    ignores=["mlp_bias", *TRAINING_KEYS],
    spelling={"num_experts": "num_local_experts"},
    biases={"attention_bias": ATTENTION},
    defaults={**dict.fromkeys(FACTORS, 1.0), "num_experts": 8, "num_experts_per_tok": 2, "eos_token_id": 2},
)
GGUF = LLAMA_GGUF.override(
    reads=[*GGUF_KEYS, *GGUF_FACTORS.values(), "expert_shared_feed_forward_length"],
    defaults=dict.fromkeys(GGUF_FACTORS.values(), 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraniteMoeConfig(MoeConfig):
    """With the factors of Granite."""

    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return super(GraniteMoeConfig, cls).read(base | factors(values, is_gguf), values, is_gguf)


@architecture(
    "GraniteMoeForCausalLM",
    model_type="granitemoe",
    gguf="granitemoe",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=GraniteMoeConfig,
)
def granitemoe(g: Graph, c: GraniteMoeConfig) -> Value:
    """Pre-norm decoder; every block's output is scaled before it is added."""
    x = g.scale(g.embed("embed"), c.embedding_multiplier)
    for layer in g.layers(c.num_layers):
        h = attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), scale=c.attention_multiplier)
        x = g.add(x, g.scale(h, c.residual_multiplier))
        h = g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(x, g.scale(moe_mlp(g, c, layer, h, "silu", scores_chosen=True), c.residual_multiplier))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", factor=1.0 / c.logits_scaling)
