"""Routing as DeepSeek has it: scores by softmax or sigmoid, a correction of the choice, and groups of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.graph.weight import Weight
from quire.models.errors import UnsupportedModel
from quire.models.llama import LLAMA_GGUF, LLAMA_NAMES
from quire.models.moe import GGUF_KEYS as EXPERT_KEYS
from quire.models.moe import MoeConfig, is_sparse, with_experts, with_shared
from quire.models.names import TensorName
from quire.models.values import Values

SOFTMAX, SIGMOID = "softmax", "sigmoid"
GATING = {1: SOFTMAX, 2: SIGMOID}  # the values of expert_gating_func
GREEDY, IN_GROUPS = "greedy", ("group_limited_greedy", "noaux_tc")  # values of topk_method
DENSE, SPARSE = "dense", "sparse"  # values of mlp_layer_types
CONFIG_KEYS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts", "n_group",
               "topk_group", "routed_scaling_factor", "first_k_dense_replace")  # fmt: skip
UNUSED_KEYS = ("output_router_logits", "aux_loss_alpha", "seq_aux", "ep_size", "qk_head_dim")
GROUPED_GGUF = LLAMA_GGUF.override(
    reads=[
        *(*EXPERT_KEYS, "expert_shared_count", "expert_weights_norm", "expert_weights_scale", "expert_gating_func"),
        *("expert_group_count", "expert_group_used_count", "leading_dense_block_count", "nextn_predict_layers"),
    ],
)
EXPERT_NAMES = with_shared(with_experts(LLAMA_NAMES), "mlp.shared_experts")
CORRECTION = TensorName(
    "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", ("experts",), only=is_sparse, in_all=False, kind=""
)
CORRECTED_NAMES = EXPERT_NAMES.but({"mlp.correction": CORRECTION})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedMoeConfig(MoeConfig):
    """With the way in which scores are computed, and groups to which the choice is limited."""

    scoring: str  # "": the file does not say
    groups: int
    top_groups: int

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        numbers = _from_gguf(values) if is_gguf else _from_config(values)
        found = super(GroupedMoeConfig, cls).read(base | numbers, values, is_gguf)
        if found.num_experts % found.groups or found.top > found.num_experts // found.groups * found.top_groups:
            raise UnsupportedModel(
                f"{found.top} of {found.num_experts} experts cannot be chosen from {found.top_groups} of "
                f"{found.groups} groups ({'expert_group_count' if is_gguf else 'n_group'})."
            )
        return replace(found, sparse=listed_layers(values, found.num_layers) or found.sparse)

    def complete(self, weights: dict[str, Weight]) -> Self:
        """Early GGUF files do not name the scoring: those with a correction have sigmoid."""
        has_correction = any(name.endswith(".mlp.correction") for name in weights)
        return self if self.scoring else replace(self, scoring=SIGMOID if has_correction else SOFTMAX)

    @property
    def routing(self) -> dict[str, Any]:
        """Attributes of `route`. With softmax a group counts by its best expert, with sigmoid by its best two."""
        group_top = 2 if self.scoring == SIGMOID else 1
        return {"scoring": self.scoring, "groups": self.groups, "top_groups": self.top_groups, "group_top": group_top}


def _from_config(c: Values) -> dict[str, Any]:
    method = c.text("topk_method", IN_GROUPS[1])
    if method not in (GREEDY, *IN_GROUPS):
        raise c.refusal("topk_method", f"one of {', '.join((GREEDY, *IN_GROUPS))}")
    groups = (1, 1) if method == GREEDY else (c.size("n_group"), c.size("topk_group"))
    return {"scoring": c.text("scoring_func", SIGMOID), "groups": groups[0], "top_groups": groups[1]}


def listed_layers(c: Values, num_layers: int) -> tuple[bool, ...] | None:
    """Whether each layer has experts, if the file lists it."""
    kinds = c.texts("mlp_layer_types")
    if kinds is not None and (len(kinds) != num_layers or not {*kinds} <= {DENSE, SPARSE}):
        raise c.refusal("mlp_layer_types", f"a list of {num_layers} entries, {DENSE} or {SPARSE}")
    return None if kinds is None else tuple(kind == SPARSE for kind in kinds)


def _from_gguf(c: Values) -> dict[str, Any]:
    gating = c.integer_or_none("expert_gating_func") or 0
    if gating and gating not in GATING:
        raise c.refusal("expert_gating_func", "1 (softmax) or 2 (sigmoid)")
    counts = [c.integer_or_none(f"expert_group_{word}") or 1 for word in ("count", "used_count")]
    return {"scoring": GATING.get(gating, ""), "groups": counts[0], "top_groups": counts[1]}
