"""Qwen3-Next: the gated delta rule in most layers, gated attention in the others, and experts in all."""

from __future__ import annotations

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import moe_mlp
from quire.models.delta import DELTA_CONFIG, DELTA_GGUF, DELTA_NAMES, attend_or_recur, delta_entries
from quire.models.delta_moe import DeltaMoeConfig, with_shared_experts
from quire.models.keys import ConfigKeys
from quire.models.moe import CONFIG_KEYS, GGUF_KEYS, TRAINING_KEYS
from quire.models.names import RowRule, Stored, concatenated, part_of_groups
from quire.models.registry import architecture


def _of_key_head(index: int) -> RowRule:
    return part_of_groups(index, "key_heads", "delta_keys", "delta_keys", "delta_values", "delta_values")


_QKV, _GATE = concatenated(*map(_of_key_head, range(3))), _of_key_head(3)  # every key head has all four side by side
_BETA, _DECAY = (part_of_groups(index, "key_heads", "delta_heads", "delta_heads") for index in range(2))
_NAMES = DELTA_NAMES.but({**delta_entries("linear_attn")})
NAMES = with_shared_experts(
    _NAMES.marked("delta.qkv", safetensors=Stored("linear_attn.in_proj_qkvz", _QKV))
    .marked("delta.gate", safetensors=Stored("linear_attn.in_proj_qkvz", _GATE))
    .marked("delta.beta", safetensors=Stored("linear_attn.in_proj_ba", _BETA), gguf=Stored("ssm_ba", _BETA))
    .marked("delta.decay", safetensors=Stored("linear_attn.in_proj_ba", _DECAY), gguf=Stored("ssm_ba", _DECAY))
    .but(layouts={"ssm_in.weight": {"delta.qkv": Stored("ssm_in", _QKV), "delta.gate": Stored("ssm_in", _GATE)}})
)  # the first GGUF files have the matrix of safetensors
CONFIG = DELTA_CONFIG.override(
    reads=[*CONFIG_KEYS, "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
           "decoder_sparse_step", "mlp_only_layers"],
    ignores=TRAINING_KEYS,
    defaults={"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": True,
              "shared_expert_intermediate_size": 512, "num_key_value_heads": 2},
)  # fmt: skip
GGUF = DELTA_GGUF.override(
    reads=[*GGUF_KEYS, "expert_shared_feed_forward_length"],
    defaults={"expert_weights_norm": True, "feed_forward_length": 1},  # files without dense layers may not have it
)


def qwen3_next_layer(g: Graph, c: DeltaMoeConfig, layer: Layer, x: Value) -> Value:
    """Draw a layer."""
    x = g.add(x, attend_or_recur(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)))
    return g.add(x, moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))


@architecture(
    "Qwen3NextForCausalLM", model_type="qwen3_next", gguf="qwen3next", names=NAMES, keys=ConfigKeys(CONFIG, GGUF),
    config=DeltaMoeConfig,
)  # fmt: skip
def qwen3_next(g: Graph, c: DeltaMoeConfig) -> Value:
    """Pre-norm decoder with norms of 1 + w."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = qwen3_next_layer(g, c, layer, x)
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
