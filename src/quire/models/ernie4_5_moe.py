"""Ernie 4.5 with experts: they are chosen by corrected scores; some layers are dense, and one expert is shared."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ATTENTION, MLP
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES
from quire.models.mixtral import MOE_GGUF, mixtral
from quire.models.moe import CONFIG_KEYS, TRAINING_KEYS, MoeConfig, with_experts, with_shared
from quire.models.names import Stored
from quire.models.registry import architecture

CORRECTIONS = (
    Stored("mlp.moe_statics.e_score_correction_bias", shape=("one", "experts"), kind=""),
    Stored("mlp.gate.moe_statics.e_score_correction_bias", shape=("one", "experts"), kind=""),
)
NAMES = with_shared(with_experts(LLAMA_NAMES, corrections=CORRECTIONS), "mlp.shared_experts").but(
    ignored=r"^model\.mtp_"  # a part that predicts more tokens
)
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "moe_intermediate_size", "n_shared_experts", "first_k_dense_replace", "decoder_sparse_step",
           "moe_layer_end_index"],
    ignores=["attention_bias", "mlp_bias", *TRAINING_KEYS],
    fixed={"moe_norm_min": (None, 1e-12)},
    spelling={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k",
              "n_shared_experts": "moe_num_shared_experts", "first_k_dense_replace": "moe_layer_start_index",
              "decoder_sparse_step": "moe_layer_interval"},
    synonyms={"num_experts": "num_experts", "num_experts_per_tok": "num_experts_per_tok"},
    biases={"use_bias": (*ATTENTION, *MLP, "shared.gate", "shared.up", "shared.down", "head")},
    defaults={"num_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1536, "n_shared_experts": 2,
              "first_k_dense_replace": 1, "norm_topk_prob": True, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
              "tie_word_embeddings": True, "num_key_value_heads": 4, "eos_token_id": 2},
)  # fmt: skip
GGUF = MOE_GGUF.override(
    reads=["interleave_moe_layer_step", "leading_dense_block_count", "expert_shared_count",
           "expert_shared_feed_forward_length"],
)  # fmt: skip


@architecture(
    "Ernie4_5_MoeForCausalLM",
    model_type="ernie4_5_moe",
    gguf="ernie4_5-moe",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=MoeConfig,
)
def ernie4_5_moe(g: Graph, c: MoeConfig) -> Value:
    """Rope in pairs is the only step that Mixtral does not have."""
    return mixtral(g, c, interleaved=True)
