"""Phi-3 and Phi-4: Llama with one matrix for q, k and v, one for gate and up, partial rope and LongRoPE."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES, llama
from quire.models.names import parts_of
from quire.models.registry import architecture

NAMES = LLAMA_NAMES.but(
    {
        **parts_of("self_attn.qkv_proj", "attn_qkv", {"attn.q": "q", "attn.k": "kv", "attn.v": "kv"}),
        **parts_of("mlp.gate_up_proj", "ffn_up", {"mlp.gate": "ffn", "mlp.up": "ffn"}),
    }
)
CONFIG = LLAMA_CONFIG.override(
    reads=["sliding_window"],
    ignores=["attention_bias", "mlp_bias", "embd_pdrop", "resid_pdrop"],
    defaults={"sliding_window": None, "rms_norm_eps": 1e-5, "eos_token_id": 32000},
    rope=RopeRules(is_partial=True, renamed={"su": "longrope", "yarn": "longrope"}),
)
GGUF = LLAMA_GGUF.override(rope=RopeRules(is_partial=True, has_factors=True))


@architecture("Phi3ForCausalLM", model_type="phi3", gguf="phi3", names=NAMES, keys=ConfigKeys(CONFIG, GGUF))
def phi3(g: Graph, c: ModelConfig) -> Value:
    """The parts of the fused matrices are in the names."""
    return llama(g, c)
