"""Qwen3.5 and Qwen3.6 with experts, their text model: Qwen3-Next with the tensors of Qwen3.5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.graph.graph import Graph, Value
from quire.models.delta import DELTA_NAMES
from quire.models.delta_moe import DeltaMoeConfig, with_shared_experts
from quire.models.keys import ConfigKeys
from quire.models.qwen3_next import CONFIG as NEXT_CONFIG
from quire.models.qwen3_next import GGUF, qwen3_next
from quire.models.registry import architecture

CONFIG = NEXT_CONFIG.override(
    ignores=["intermediate_size", "decoder_sparse_step"],  # all layers have experts
    fixed={"mlp_only_layers": (None, []), "norm_topk_prob": (None, True)},
    defaults={"num_experts": 256, "num_experts_per_tok": 8, "intermediate_size": 1},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen35MoeConfig(DeltaMoeConfig):
    """With another order of heads in GGUF files."""

    is_tiled: ClassVar[bool] = True


@architecture(
    "Qwen3_5MoeForCausalLM",
    model_type="qwen3_5_moe_text",
    gguf="qwen35moe",
    names=with_shared_experts(DELTA_NAMES),
    keys=ConfigKeys(CONFIG, GGUF),
    config=Qwen35MoeConfig,
)
def qwen3_5_moe(g: Graph, c: Qwen35MoeConfig) -> Value:
    """The tensors of the delta rule are other ones than those of Qwen3-Next."""
    return qwen3_next(g, c)
