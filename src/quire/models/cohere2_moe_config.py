"""The numbers of Cohere 2 with experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.models.config import ATTENTION
from quire.models.grouped_moe import listed_layers
from quire.models.llama import LLAMA_CONFIG
from quire.models.moe import CONFIG_KEYS, MoeConfig
from quire.models.rope import FULL, SLIDING
from quire.models.values import Values

SCORING, STRATEGIES = ("softmax", "sigmoid"), ("sum", "average")
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "n_shared_experts", "norm_topk_prob", "expert_selection_fn", "first_k_dense_replace",
           "shared_expert_combination_strategy", "mlp_layer_types", "prefix_dense_sliding_window_pattern",
           "prefix_dense_intermediate_size", "layer_norm_eps", "logit_scale", "sliding_window",
           "sliding_window_pattern", "layer_types", "num_nextn_predict_layers"],
    ignores=["mlp_bias", "output_router_logits"],
    spelling={"n_shared_experts": "num_shared_experts"},
    defaults={"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "expert_selection_fn": "softmax",
              "shared_expert_combination_strategy": "average", "prefix_dense_sliding_window_pattern": 1,
              "layer_norm_eps": 1e-5, "logit_scale": 0.0625, "sliding_window": 4096, "sliding_window_pattern": 4,
              "head_dim": 128, "rope_theta": 10000.0, "tie_word_embeddings": True, "eos_token_id": 255001},
    biases={"attention_bias": ATTENTION},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohere2MoeConfig(MoeConfig):
    """With its kind of norms, the layers that rotate, and how the answers of experts are joined."""

    has_layer_norms: bool  # else RMS norms
    rotates: tuple[bool, ...]
    scoring: str  # of the chosen logits
    mlp_factor: float  # of the sum of routed and shared experts
    logit_scale: float

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        count, first = base["num_layers"], values.integer_or_none("first_k_dense_replace") or 0
        sparse = listed_layers(values, count) or tuple(i >= first for i in range(count))
        prefix = values.size("prefix_dense_sliding_window_pattern")
        if "layer_types" not in values:  # the pattern begins anew behind the first dense layers
            steps = [(i + 1, prefix) if i < first else (i - first + 1, values.size("sliding_window_pattern"))
                     for i in range(count)]  # fmt: skip
            base["layer_types"] = tuple(SLIDING if number % step else FULL for number, step in steps)
            window = values.size_or_none("sliding_window")
            base["windows"] = tuple(window if kind == SLIDING else None for kind in base["layer_types"])
        own = {
            "has_layer_norms": "rms_norm_eps" not in values,
            "rotates": tuple(kind == SLIDING or (prefix == 1 and not is_sparse)
                             for kind, is_sparse in zip(base["layer_types"], sparse, strict=True)),
            "scoring": _one_of(values, "expert_selection_fn", SCORING),
            "logit_scale": values.number("logit_scale"),
        }  # fmt: skip
        strategy = _one_of(values, "shared_expert_combination_strategy", STRATEGIES)
        eps = values.fraction("layer_norm_eps" if own["has_layer_norms"] else "rms_norm_eps")
        found = super(Cohere2MoeConfig, cls).read(base | own | {"norm_eps": eps, "mlp_factor": 1.0}, values, is_gguf)
        return replace(
            found, sparse=sparse, ffn=values.size("prefix_dense_intermediate_size", base["ffn"]),
            mlp_factor=0.5 if found.shared_ffn and strategy == "average" else 1.0,
            renormalize=found.renormalize and found.scoring == "sigmoid",
        )  # fmt: skip


def _one_of(values: Values, key: str, known: tuple[str, ...]) -> str:
    if (found := values.text(key, "")) not in known:
        raise values.refusal(key, " or ".join(known))
    return found
