"""Ernie 4.5: Llama with rope in pairs, and biases on all products or none."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ATTENTION, MLP, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES, llama
from quire.models.registry import architecture

KEYS = LLAMA_CONFIG.override(
    ignores=["attention_bias", "mlp_bias"],
    biases={"use_bias": ATTENTION + MLP},
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True, "num_key_value_heads": 2,
              "head_dim": 128, "eos_token_id": 2},
)  # fmt: skip


@architecture(
    "Ernie4_5ForCausalLM",
    model_type="ernie4_5",
    gguf="ernie4_5",
    names=LLAMA_NAMES,
    keys=ConfigKeys(KEYS, LLAMA_GGUF),
)
def ernie4_5(g: Graph, c: ModelConfig) -> Value:
    """Rope is the only step that differs."""
    return llama(g, c, interleaved=True)
