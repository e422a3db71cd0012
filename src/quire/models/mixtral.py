"""Mixtral: Llama with experts instead of a feed-forward block, and an optional window."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, PAIRED_NAMES
from quire.models.moe import CONFIG_KEYS, GGUF_KEYS, TRAINING_KEYS, MoeConfig, with_experts
from quire.models.registry import architecture

NAMES = with_experts(PAIRED_NAMES, block="block_sparse_moe", words=("w1", "w3", "w2"))
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "sliding_window"],
    ignores=["attention_bias", "mlp_bias", *TRAINING_KEYS],
    spelling={"num_experts": "num_local_experts"},
    synonyms={"num_experts": "num_experts"},
    defaults={"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8, "rope_theta": 1000000.0,
              "rms_norm_eps": 1e-5, "eos_token_id": 2, "norm_topk_prob": True},
)  # fmt: skip
NO_CHANGES: Mapping[str, Any] = MappingProxyType({})
# Softmax, with renormalized weights.
MOE_GGUF = LLAMA_GGUF.override(
    reads=GGUF_KEYS, fixed={"expert_gating_func": (1,)}, defaults={"expert_weights_norm": True}
)


@architecture(
    "MixtralForCausalLM",
    model_type="mixtral",
    gguf="llama",
    names=NAMES,
    keys=ConfigKeys(CONFIG, MOE_GGUF),
    config=MoeConfig,
)
def mixtral(g: Graph, c: MoeConfig, routing: Mapping[str, Any] = NO_CHANGES, **attention: Any) -> Value:
    """Pre-norm decoder with experts.

    `routing` and `attention`: what `moe_mlp` and `attend` take, in architectures that differ in nothing else.
    """
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = mixtral_layer(g, c, layer, x, routing, **attention)
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")


def mixtral_layer(
    g: Graph, c: MoeConfig, layer: Layer, x: Value, routing: Mapping[str, Any] = NO_CHANGES, **attention: Any
) -> Value:
    """Draw a layer."""
    h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
    x = g.add(x, attend(g, c, layer, h, **attention))
    h = g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)
    return g.add(x, moe_mlp(g, c, layer, h, "silu", **routing))
