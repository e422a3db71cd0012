"""Ministral: Llama with windows in the layers that the configuration lists."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES, llama
from quire.models.registry import architecture

KEYS = LLAMA_CONFIG.override(
    reads=["sliding_window", "layer_types"],
    ignores=["attention_bias", "mlp_bias"],
    defaults={"sliding_window": 4096, "num_key_value_heads": 8, "eos_token_id": 2},
)


@architecture("MinistralForCausalLM", model_type="ministral", names=LLAMA_NAMES, keys=ConfigKeys(KEYS))
def ministral(g: Graph, c: ModelConfig) -> Value:
    """The windows come from the configuration."""
    return llama(g, c)
