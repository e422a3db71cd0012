"""The numbers of Mellum 2: those of a model with experts, and the kind of its head's layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.models.config import FULL, SLIDING
from quire.models.grouped_moe import DENSE, SPARSE, listed_layers
from quire.models.keys import RopeRules
from quire.models.llama import LLAMA_CONFIG
from quire.models.moe import CONFIG_KEYS, TRAINING_KEYS, MoeConfig
from quire.models.values import Values

HEAD_TYPES, HEAD_MLP_TYPES = "mtp_layer_types", "mtp_mlp_layer_types"
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "moe_intermediate_size", "norm_topk_prob", "mlp_layer_types", "sliding_window", "layer_types",
           HEAD_TYPES, HEAD_MLP_TYPES],
    ignores=["mlp_bias", "num_nextn_predict_layers", "num_mtp_layers", *TRAINING_KEYS],
    synonyms={"num_local_experts": "num_experts"},
    defaults={"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 896, "norm_topk_prob": True,
              "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 1024, "rope_theta": 500000.0,
              "rope_local_base_freq": 10000.0},
    rope=RopeRules(by_layer_type=True, is_partial=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MellumConfig(MoeConfig):
    """With the kind of the head's layer."""

    window: int | None
    head_type: str = SLIDING
    head_is_sparse: bool = True

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        own = {
            "window": values.size_or_none("sliding_window"),
            "head_type": _of_head(values, HEAD_TYPES, (SLIDING, FULL)),
            "head_is_sparse": _of_head(values, HEAD_MLP_TYPES, (SPARSE, DENSE)) == SPARSE,
        }
        if "layer_types" not in values:
            count = base["num_layers"]
            own |= {"layer_types": (FULL,) * count, "windows": (None,) * count}
        found = super(MellumConfig, cls).read(base | own, values, is_gguf)
        return replace(found, sparse=listed_layers(values, found.num_layers) or found.sparse)


def _of_head(values: Values, key: str, kinds: tuple[str, str]) -> str:
    """The kind of the head's only layer; by default the first of them."""
    given = values.texts(key) or kinds[:1]
    if len(given) != 1 or given[0] not in kinds:
        raise values.refusal(key, f"a list of one entry, {' or '.join(kinds)}")
    return given[0]
