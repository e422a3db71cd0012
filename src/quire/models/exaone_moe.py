"""K-EXAONE: pre-norm, with the attention of EXAONE 4 and the routing of DeepSeek-V3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.config import SLIDING
from quire.models.exaone4 import CONFIG as EXAONE4_CONFIG
from quire.models.grouped_moe import CONFIG_KEYS, CORRECTED_NAMES, GROUPED_GGUF, UNUSED_KEYS, GroupedMoeConfig
from quire.models.keys import ConfigKeys
from quire.models.names import Stored, TensorName
from quire.models.registry import alias, architecture
from quire.models.values import Values

NAME = "ExaoneMoeForCausalLM"
PUBLISHED = ".mlp.e_score_correction_bias"  # transformers has it in `mlp.gate`
NAMES = CORRECTED_NAMES.but(
    {
        "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
        "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",)),
    },
    layouts={**CORRECTED_NAMES.layouts, PUBLISHED: {"mlp.correction": Stored(PUBLISHED.removeprefix("."))}},
    ignored=r"^mtp\.",  # layers for drafting
)
CONFIG = EXAONE4_CONFIG.override(
    reads=[*CONFIG_KEYS, "norm_topk_prob", "mlp_layer_types"],
    ignores=[*UNUSED_KEYS, "num_nextn_predict_layers"],
    fixed={"topk_method": (None, "noaux_tc"), "scoring_func": (None, "sigmoid")},
    spelling={"n_shared_experts": "num_shared_experts"},
    defaults={
        **{"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "n_shared_experts": 1},
        **{"norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1},
        **{"first_k_dense_replace": 1, "eos_token_id": 53},
    },
)
GGUF = GROUPED_GGUF.override(
    reads=["expert_shared_feed_forward_length"], defaults={"attention.sliding_window_pattern": 4}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaoneMoeConfig(GroupedMoeConfig):
    """With the layers that rotate."""

    rotates: tuple[bool, ...]

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        window = values.integer_or_none("attention.sliding_window" if is_gguf else "sliding_window")
        rotates = tuple(not window or kind == SLIDING for kind in base["layer_types"])
        return super(ExaoneMoeConfig, cls).read(base | {"rotates": rotates}, values, is_gguf)


@architecture(
    NAME, model_type="exaone_moe", gguf="exaone-moe", names=NAMES, keys=ConfigKeys(CONFIG, GGUF), config=ExaoneMoeConfig
)
def exaone_moe(g: Graph, c: ExaoneMoeConfig) -> Value:
    """Pre-norm decoder. The first layers have a feed-forward block instead of experts."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, head_norm="rms", rotates=c.rotates[layer.index]))
        x = g.add(x, moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu", **c.routing))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")


alias("ExaoneMoEForCausalLM", of=NAME, model_type="exaone_moe")
