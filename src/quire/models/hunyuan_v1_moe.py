"""Hunyuan v1 with experts: Hunyuan v1 dense, whose feed-forward block is an expert that all tokens use."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.hunyuan_v1_dense import KEYS as DENSE_KEYS
from quire.models.hunyuan_v1_dense import NAMES as DENSE_NAMES
from quire.models.keys import ConfigKeys
from quire.models.mixtral import MOE_GGUF, mixtral
from quire.models.moe import CONFIG_KEYS, TRAINING_KEYS, MoeConfig, with_experts, with_shared
from quire.models.registry import architecture

CONFIG = DENSE_KEYS.override(
    reads=[*CONFIG_KEYS, "moe_intermediate_size", "n_shared_experts"],
    ignores=["sep_token_id", *TRAINING_KEYS],
    fixed={"use_qk_norm": (None, True)},
    spelling={"num_experts_per_tok": "moe_topk", "n_shared_experts": "num_shared_expert"},
    synonyms={"num_local_experts": "num_experts", "num_experts_per_tok": "num_experts_per_tok"},
    defaults={"num_experts": 1, "num_experts_per_tok": 1, "n_shared_experts": 1, "norm_topk_prob": True},
)


@architecture(
    "HunYuanMoEV1ForCausalLM",
    model_type="hunyuan_v1_moe",
    gguf="hunyuan-moe",
    names=with_shared(with_experts(DENSE_NAMES, router="gate.wg"), "mlp.shared_mlp"),
    keys=ConfigKeys(CONFIG, MOE_GGUF.override(reads=["expert_shared_count", "expert_shared_feed_forward_length"])),
    config=MoeConfig,
)
def hunyuan_v1_moe(g: Graph, c: MoeConfig) -> Value:
    """The norms of heads are the only step that Mixtral does not have."""
    return mixtral(g, c, head_norm="rms", norms_last=True)
