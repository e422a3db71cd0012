"""Trinity (AFMoE): norms on both sides of each block, gated attention, rope in layers with a window alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, moe_mlp
from quire.models.config import ATTENTION, SLIDING
from quire.models.grouped_moe import CONFIG_KEYS, CORRECTION, GROUPED_GGUF, UNUSED_KEYS, GroupedMoeConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES
from quire.models.moe import with_experts, with_shared
from quire.models.names import TensorName
from quire.models.registry import architecture
from quire.models.values import Values

ONE = (None, 1)
NAMES = (
    with_shared(with_experts(LLAMA_NAMES, router="router.gate"), "mlp.shared_experts")
    .but(
        {
            "attn.gate": TensorName("self_attn.gate_proj", "attn_gate", ("q", "hidden")),
            "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
            "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",)),
            "attn.post_norm": TensorName("post_attention_layernorm", "post_attention_norm", ("hidden",)),
            "mlp.norm": TensorName("pre_mlp_layernorm", "ffn_norm", ("hidden",)),
            "mlp.post_norm": TensorName("post_mlp_layernorm", "post_ffw_norm", ("hidden",)),
            "mlp.correction": CORRECTION,
        }
    )
    .marked("mlp.correction", safetensors="mlp.expert_bias")
)
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "sliding_window", "sliding_window_pattern", "layer_types", "mup_enabled"],
    ignores=[*UNUSED_KEYS, "mlp_bias", "load_balance_coeff"],
    fixed={"route_norm": (None, True), "score_func": (None, "sigmoid"),
           **dict.fromkeys(("n_group", "topk_group", "num_expert_groups", "num_limited_groups"), ONE)},
    spelling={"first_k_dense_replace": "num_dense_layers", "n_shared_experts": "num_shared_experts",
              "routed_scaling_factor": "route_scale", "sliding_window_pattern": "global_attn_every_n_layers"},
    defaults={"num_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1408,
              "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "head_dim": 128,
              "sliding_window": 1024, "sliding_window_pattern": 4, "rms_norm_eps": 1e-5},
    biases={"attention_bias": ATTENTION},
)  # fmt: skip
GGUF = GROUPED_GGUF.override(defaults={"attention.sliding_window_pattern": 4, "mup_enabled": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class AfmoeConfig(GroupedMoeConfig):
    """With a factor of embeddings."""

    embedding_factor: float

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        factor = base["hidden"] ** 0.5 if values.flag("mup_enabled") else 1.0
        return super(AfmoeConfig, cls).read(base | {"embedding_factor": factor}, values, is_gguf)


@architecture(
    "AfmoeForCausalLM", model_type="afmoe", gguf="afmoe", names=NAMES, keys=ConfigKeys(CONFIG, GGUF), config=AfmoeConfig
)
def afmoe(g: Graph, c: AfmoeConfig) -> Value:
    """Each block is normed on both sides, then added."""
    x = g.scale(g.embed("embed"), c.embedding_factor)
    for layer in g.layers(c.num_layers):
        h, is_local = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), c.layer_types[layer.index] == SLIDING
        h = attend(g, c, layer, h, head_norm="rms", rotates=is_local, gated=True)
        x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
        h = moe_mlp(g, c, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu", **c.routing)
        x = g.add(x, g.rms_norm(h, layer["mlp.post_norm"], eps=c.norm_eps))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
