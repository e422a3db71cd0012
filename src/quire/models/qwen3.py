"""Qwen3: Llama with an RMS norm on every query and key head."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.llama import LLAMA_NAMES, llama
from quire.models.names import TensorName
from quire.models.registry import architecture

NAMES = {
    **LLAMA_NAMES,
    "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
    "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",)),
}
DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "head_dim": 128}


@architecture("Qwen3ForCausalLM", gguf="qwen3", names=NAMES, defaults=DEFAULTS)
def qwen3(g: Graph, c: ModelConfig) -> Value:
    """The norms are the only step that Llama does not have."""
    return llama(g, c, norm_heads=True)
