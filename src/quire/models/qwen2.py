"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values, and an optional window in its later layers."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES, llama
from quire.models.registry import architecture

NAMES = LLAMA_NAMES.marked("attn.q", "attn.k", "attn.v", biased=True)
KEYS = LLAMA_CONFIG.override(
    reads=["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
    ignores=["attention_bias", "mlp_bias"],
    defaults={
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
    },
)


@architecture("Qwen2ForCausalLM", model_type="qwen2", gguf="qwen2", names=NAMES, keys=ConfigKeys(KEYS, LLAMA_GGUF))
def qwen2(g: Graph, c: ModelConfig) -> Value:
    """The biases are in the names."""
    return llama(g, c)
