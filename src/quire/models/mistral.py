"""Mistral: Llama with a sliding window, which later versions set to null. Its GGUF files say `llama`."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES, llama
from quire.models.registry import architecture

KEYS = LLAMA_CONFIG.override(
    reads=["sliding_window"],
    ignores=["attention_bias", "mlp_bias"],
    defaults={"sliding_window": 4096, "num_key_value_heads": 8},
)


@architecture("MistralForCausalLM", model_type="mistral", names=LLAMA_NAMES, keys=ConfigKeys(KEYS))
def mistral(g: Graph, c: ModelConfig) -> Value:
    """Llama; the window comes from the configuration."""
    return llama(g, c)
