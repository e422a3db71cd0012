"""Qwen3: Llama with an RMS norm on every query and key head."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES, llama
from quire.models.names import TensorName
from quire.models.registry import architecture

NAMES = LLAMA_NAMES.but(
    {
        "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
        "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",)),
    }
)
KEYS = LLAMA_CONFIG.override(
    reads=["use_sliding_window", "sliding_window", "max_window_layers", "layer_types"],
    ignores=["mlp_bias"],
    defaults={
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "num_key_value_heads": 32,
        "head_dim": 128,
    },
)


@architecture("Qwen3ForCausalLM", model_type="qwen3", gguf="qwen3", names=NAMES, keys=ConfigKeys(KEYS, LLAMA_GGUF))
def qwen3(g: Graph, c: ModelConfig) -> Value:
    """The norms are the only step that Llama does not have."""
    return llama(g, c, head_norm="rms")
