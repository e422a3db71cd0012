"""Qwen2-MoE: Qwen2 with experts, and one that all tokens use, weighted by a sigmoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.config import QKV
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.mixtral import mixtral
from quire.models.moe import CONFIG_KEYS, GGUF_KEYS, TRAINING_KEYS, MoeConfig, has_shared, with_experts, with_shared
from quire.models.names import Stored, TensorName
from quire.models.registry import architecture
from quire.models.values import Values

SWITCH = TensorName(
    "mlp.shared_expert_gate", Stored("ffn_gate_inp_shexp", shape=("hidden",)), ("one", "hidden"), only=has_shared
)
NAMES = with_shared(with_experts(LLAMA_NAMES), "mlp.shared_expert").but({"shared.router": SWITCH})
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob",
           "decoder_sparse_step", "mlp_only_layers", "use_sliding_window", "sliding_window", "layer_types"],
    ignores=["attention_bias", "mlp_bias", "max_window_layers", *TRAINING_KEYS],
    biases={"qkv_bias": QKV},
    defaults={"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "num_key_value_heads": 16,
              "shared_expert_intermediate_size": 5632, "use_sliding_window": False, "sliding_window": 4096,
              "qkv_bias": True},
)  # fmt: skip
GGUF = LLAMA_GGUF.override(reads=[*GGUF_KEYS, "expert_shared_feed_forward_length"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2MoeConfig(MoeConfig):
    """With windows in the layers that are listed alone."""

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        if values.flag("use_sliding_window") and "layer_types" not in values:
            raise values.refusal("use_sliding_window", "false, or layer_types must say which layers have a window")
        return super(Qwen2MoeConfig, cls).read(base, values, is_gguf)


@architecture(
    "Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    gguf="qwen2moe",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=Qwen2MoeConfig,
)
def qwen2_moe(g: Graph, c: Qwen2MoeConfig) -> Value:
    """The shared expert and the biases are in the names."""
    return mixtral(g, c)
