"""Ministral 3, and the text model of Mistral 3: Llama with YaRN, and queries that grow with the position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, PAIRED_NAMES, llama
from quire.models.registry import architecture
from quire.models.rope import ALL
from quire.models.values import Values

BETA, GGUF_BETA = "llama_4_scaling_beta", "attention.temperature_scale"
ROPE = {"type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
        "mscale_all_dim": 1.0, BETA: 0.1}  # fmt: skip
CONFIG = LLAMA_CONFIG.override(
    reads=["sliding_window"],
    ignores=["attention_bias", "mlp_bias"],
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "rope_parameters": ROPE,
              "eos_token_id": 2},
    rope=RopeRules(beside=frozenset({BETA, "max_position_embeddings"})),
)  # fmt: skip
GGUF = LLAMA_GGUF.override(reads=[GGUF_BETA, "rope.scaling.yarn_log_multiplier"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ministral3Config(ModelConfig):
    """With the factor of its queries."""

    position_scale: tuple[float, int] | None  # how fast it grows, and every how many tokens; None: it is 1

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        table = "rope_scaling" if values.mapping("rope_scaling") else "rope_parameters"
        beta = values.number_or_none(GGUF_BETA) if is_gguf else values.table(table).number(BETA)
        return cls(**base, position_scale=(beta, base["ropes"][ALL].original_context) if beta else None)


@architecture(
    "Ministral3ForCausalLM",
    model_type="ministral3",
    gguf="mistral3",
    names=PAIRED_NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=Ministral3Config,
)
def ministral3(g: Graph, c: Ministral3Config) -> Value:
    """Queries are scaled after rope."""
    return llama(g, c, position_scale=c.position_scale)
