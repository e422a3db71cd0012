"""Qwen3-MoE: Qwen3 with experts in all layers, or in some."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG
from quire.models.mixtral import MOE_GGUF, mixtral
from quire.models.moe import CONFIG_KEYS, TRAINING_KEYS, MoeConfig, with_experts
from quire.models.qwen3 import NAMES as DENSE_NAMES
from quire.models.registry import architecture

CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
           "use_sliding_window", "sliding_window"],
    ignores=["mlp_bias", "max_window_layers", *TRAINING_KEYS],
    fixed={"use_qk_norm": (None, True)},
    synonyms={"num_local_experts": "num_experts"},
    defaults={"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "num_key_value_heads": 4,
              "use_sliding_window": False, "sliding_window": 4096},
)  # fmt: skip


@architecture(
    "Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    gguf="qwen3moe",
    names=with_experts(DENSE_NAMES),
    keys=ConfigKeys(CONFIG, MOE_GGUF),
    config=MoeConfig,
)
def qwen3_moe(g: Graph, c: MoeConfig) -> Value:
    """The norms of heads are the only step that Mixtral does not have."""
    return mixtral(g, c, head_norm="rms")
