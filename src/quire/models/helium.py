"""Helium: Llama with rope in pairs."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import MLP, QKV, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES, llama
from quire.models.registry import architecture

KEYS = LLAMA_CONFIG.override(
    biases={"attention_bias": QKV, "mlp_bias": MLP},
    defaults={"rms_norm_eps": 1e-8, "rope_theta": 100000.0, "num_key_value_heads": 20, "head_dim": 128,
              "eos_token_id": 2},
)  # fmt: skip


@architecture("HeliumForCausalLM", model_type="helium", names=LLAMA_NAMES, keys=ConfigKeys(KEYS))
def helium(g: Graph, c: ModelConfig) -> Value:
    """Rope is the only step that differs."""
    return llama(g, c, interleaved=True)
