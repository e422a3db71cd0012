"""MiniMax-M2: experts chosen by corrected sigmoids, norms on the whole width of queries and keys, and partial rope."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_NAMES
from quire.models.mixtral import MOE_GGUF, mixtral
from quire.models.moe import CONFIG_KEYS, TRAINING_KEYS, MoeConfig, with_experts
from quire.models.names import Stored
from quire.models.olmoe import WIDE_NORMS
from quire.models.registry import architecture
from quire.models.values import Values

CORRECTION = "e_score_correction_bias"
NAMES = with_experts(
    LLAMA_NAMES,
    block="block_sparse_moe",
    words=("w1", "w3", "w2"),
    corrections=(Stored(f"block_sparse_moe.{CORRECTION}", kind=""), Stored(f"mlp.{CORRECTION}", kind="")),
).but(WIDE_NORMS)
PARTIAL = RopeRules(is_partial=True)
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "rotary_dim"],
    ignores=["attention_bias", "mlp_bias", *TRAINING_KEYS],
    fixed={"use_qk_norm": (None, True), "scoring_func": (None, "sigmoid"), "use_routing_bias": (None, True),
           "qk_norm_type": (None, "per_layer"), "shared_intermediate_size": (None, 0)},
    spelling={"num_experts": "num_local_experts"},
    synonyms={"num_experts": "num_experts"},
    defaults={"num_experts": 256, "num_experts_per_tok": 8, "norm_topk_prob": True, "rope_theta": 5000000.0,
              "num_key_value_heads": 8, "head_dim": 128, "eos_token_id": 200020},
    rope=PARTIAL,
)  # fmt: skip
GGUF = MOE_GGUF.override(fixed={"expert_gating_func": (2,)}, rope=PARTIAL)  # sigmoid


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniMaxM2Config(MoeConfig):
    """Its config.json may give the rotated part of a head as a size."""

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        (kind, rope), *_ = base["ropes"].items()
        size = values.size("rotary_dim", rope.rotary_dim, most=base["head_dim"])
        if rope.rotary_dim not in (size, base["head_dim"]):
            raise values.refusal("rotary_dim", f"{rope.rotary_dim}, by partial_rotary_factor")
        return super(MiniMaxM2Config, cls).read(
            base | {"ropes": {kind: replace(rope, rotary_dim=size)}}, values, is_gguf
        )


@architecture(
    "MiniMaxM2ForCausalLM",
    model_type="minimax_m2",
    gguf="minimax-m2",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=MiniMaxM2Config,
)
def minimax_m2(g: Graph, c: MiniMaxM2Config) -> Value:
    """The norms and the scores are the only steps that Mixtral does not have."""
    return mixtral(g, c, {"scoring": "sigmoid"}, head_norm="wide")
