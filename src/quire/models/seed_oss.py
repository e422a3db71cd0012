"""Seed-OSS: Llama with biases of its own choice: on queries, keys and values, and on the output."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import MLP, QKV, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES, llama
from quire.models.registry import architecture

NAMES = LLAMA_NAMES.marked("mlp.norm", gguf="post_attention_norm")
KEYS = LLAMA_CONFIG.override(
    ignores=["residual_dropout"],
    biases={"attention_bias": QKV, "attention_out_bias": ("attn.out",), "mlp_bias": MLP},
    defaults={"attention_bias": True, "num_key_value_heads": 8, "head_dim": 128, "eos_token_id": 2},
)


@architecture(
    "SeedOssForCausalLM", model_type="seed_oss", gguf="seed_oss", names=NAMES, keys=ConfigKeys(KEYS, LLAMA_GGUF)
)
def seed_oss(g: Graph, c: ModelConfig) -> Value:
    """The biases come from the configuration."""
    return llama(g, c)
