"""OLMoE: experts in all layers, and a norm on the whole width of queries and keys."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ATTENTION
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.mixtral import mixtral
from quire.models.moe import CONFIG_KEYS, GGUF_KEYS, TRAINING_KEYS, MoeConfig, with_experts
from quire.models.names import TensorName
from quire.models.registry import architecture

WIDE_NORMS = {
    "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("q",)),
    "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("kv",)),
}
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "norm_topk_prob"],
    ignores=["mlp_bias", *TRAINING_KEYS],
    fixed={"clip_qkv": (None,)},
    synonyms={"num_local_experts": "num_experts"},
    biases={"attention_bias": ATTENTION},
    defaults={"num_experts": 64, "num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "eos_token_id": 50279},
)


@architecture(
    "OlmoeForCausalLM",
    model_type="olmoe",
    gguf="olmoe",
    names=with_experts(LLAMA_NAMES).but(WIDE_NORMS),
    keys=ConfigKeys(CONFIG, LLAMA_GGUF.override(reads=GGUF_KEYS)),
    config=MoeConfig,
)
def olmoe(g: Graph, c: MoeConfig) -> Value:
    """The norms are the only step that Mixtral does not have."""
    return mixtral(g, c, head_norm="wide")
