"""Hunyuan v1 dense: Llama with an RMS norm on every query and key head after rope, whose base alpha stretches."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ATTENTION, ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES, llama
from quire.models.names import TensorName
from quire.models.registry import architecture

NAMES = LLAMA_NAMES.but(
    {
        "attn.q_norm": TensorName("self_attn.query_layernorm", "attn_q_norm", ("head_dim",)),
        "attn.k_norm": TensorName("self_attn.key_layernorm", "attn_k_norm", ("head_dim",)),
    }
)
KEYS = LLAMA_CONFIG.override(
    ignores=["mlp_bias", "eod_token_id"],
    biases={"attention_bias": ATTENTION},
    fixed={"use_qk_norm": (True,), "use_cla": (None, False), "num_experts": (None, 1)},
    defaults={"rms_norm_eps": 1e-5, "eos_token_id": 2},
    rope=RopeRules(has_alpha=True),
)


@architecture(
    "HunYuanDenseV1ForCausalLM",
    model_type="hunyuan_v1_dense",
    gguf="hunyuan-dense",
    names=NAMES,
    keys=ConfigKeys(KEYS, LLAMA_GGUF),
)
def hunyuan_v1_dense(g: Graph, c: ModelConfig) -> Value:
    """The norms are the only step that Llama does not have."""
    return llama(g, c, head_norm="rms", norms_last=True)
