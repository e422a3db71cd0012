"""GLM-4.5, 4.6 and 4.7: Llama with rope in a part of each head, and the routing of DeepSeek-V3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.config import QKV
from quire.models.grouped_moe import CONFIG_KEYS, CORRECTED_NAMES, GROUPED_GGUF, SIGMOID, UNUSED_KEYS, GroupedMoeConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG
from quire.models.names import TensorName
from quire.models.registry import architecture
from quire.models.values import Values

PARTIAL = RopeRules(is_partial=True)
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "norm_topk_prob", "use_qk_norm", "num_nextn_predict_layers"],
    ignores=[*UNUSED_KEYS, "mlp_bias"],
    fixed={"topk_method": (None, "noaux_tc"), "scoring_func": (None, SIGMOID)},
    spelling={"num_experts": "n_routed_experts"},
    synonyms={"num_local_experts": "num_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    defaults={
        **{"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1},
        **{"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "first_k_dense_replace": 1},
        **{"num_nextn_predict_layers": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    },
    rope=PARTIAL,
    biases={"attention_bias": QKV},
)
GGUF = GROUPED_GGUF.override(rope=PARTIAL, tensors={"use_qk_norm": "blk.0.attn_q_norm.weight"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm4MoeConfig(GroupedMoeConfig):
    """With a switch for the norms of heads."""

    norms_heads: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return super(Glm4MoeConfig, cls).read(base | {"norms_heads": values.flag("use_qk_norm")}, values, is_gguf)

    def has_head_norms(self, layer: int) -> bool:
        """Has the layer, as all have or none, norms of heads?"""
        return self.norms_heads


def _norm(word: str) -> TensorName:
    stem, only = f"{word}_norm", Glm4MoeConfig.has_head_norms
    return TensorName(f"self_attn.{stem}", f"attn_{stem}", ("head_dim",), only=only)


_NORMS = {"attn.q_norm": _norm("q"), "attn.k_norm": _norm("k")}
NAMES = CORRECTED_NAMES.but(_NORMS).marked("mlp.norm", gguf="post_attention_norm")


def glm4_moe_layer(g: Graph, c: Glm4MoeConfig, layer: Layer, x: Value) -> Value:
    """Draw a layer."""
    h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
    x = g.add(x, attend(g, c, layer, h, head_norm="rms" if c.norms_heads else None))
    return g.add(x, moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu", **c.routing))


@architecture(
    "Glm4MoeForCausalLM",
    model_type="glm4_moe",
    gguf="glm4moe",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=Glm4MoeConfig,
)
def glm4_moe(g: Graph, c: Glm4MoeConfig) -> Value:
    """Pre-norm decoder. The first layers have a feed-forward block instead of experts."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = glm4_moe_layer(g, c, layer, x)
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
