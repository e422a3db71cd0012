"""Gemma 3, its text model: Gemma 2 with norms of heads, and with a rope for layers with a window and one for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.graph.graph import Graph, Value
from quire.models.gemma import gemma_norm
from quire.models.gemma2 import GEMMA2_CONFIG, GEMMA2_NAMES, Gemma2Config, gemma2
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_GGUF
from quire.models.registry import architecture

NAMES = GEMMA2_NAMES.but(
    {
        "attn.q_norm": gemma_norm("self_attn.q_norm", "attn_q_norm", "head_dim"),
        "attn.k_norm": gemma_norm("self_attn.k_norm", "attn_k_norm", "head_dim"),
    }
)
ROPES = RopeRules(by_layer_type=True)
CONFIG = GEMMA2_CONFIG.override(
    reads=["sliding_window_pattern", "rope_local_base_freq"],
    lacks=["original_max_position_embeddings"],
    fixed={"attn_logit_softcapping": (None,)},
    defaults={"sliding_window_pattern": 6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0},
    rope=ROPES,
)
GGUF = LLAMA_GGUF.override(
    reads=["final_logit_softcapping", "rope.freq_base_swa"],
    defaults={"attention.sliding_window_pattern": 6, "rope.freq_base_swa": 10000.0},
    rope=ROPES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3Config(Gemma2Config):
    """As Gemma 2."""

    WIDE: ClassVar[int] = 62


@architecture(
    "Gemma3ForCausalLM",
    model_type="gemma3_text",
    gguf="gemma3",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=Gemma3Config,
)
def gemma3(g: Graph, c: Gemma3Config) -> Value:
    """The ropes are in the configuration."""
    return gemma2(g, c, head_norm="rms")
