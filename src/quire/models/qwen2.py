"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values, and an optional window in its later layers."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.llama import LLAMA_NAMES, llama
from quire.models.names import marked
from quire.models.registry import architecture

NAMES = marked(LLAMA_NAMES, "attn.q", "attn.k", "attn.v", biased=True)
DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}


@architecture("Qwen2ForCausalLM", gguf="qwen2", names=NAMES, defaults=DEFAULTS)
def qwen2(g: Graph, c: ModelConfig) -> Value:
    """The biases are in the names."""
    return llama(g, c)
