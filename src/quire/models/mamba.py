"""Mamba: every layer is a mixer with a state of a vector for each column; no attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.bare_mamba import BARE_CONFIG, BARE_GGUF, BARE_NAMES
from quire.models.keys import ConfigKeys
from quire.models.mamba_blocks import (
    MAMBA_GGUF,
    MAMBA_KEYS,
    PROJECTIONS,
    ScanConfig,
    mamba_mixer,
    mamba_names,
    read_mamba,
)
from quire.models.registry import architecture
from quire.models.values import Values

NAMES = BARE_NAMES.but(mamba_names("mixer"))
CONFIG = BARE_CONFIG.override(
    reads=[*MAMBA_KEYS, "mamba_d_ssm"],
    spelling={"mamba_dt_rank": "time_step_rank", "mamba_d_ssm": "intermediate_size"},
    defaults={"mamba_d_state": 16, "tie_word_embeddings": True, "eos_token_id": 0},
    biases=PROJECTIONS,
)
GGUF = BARE_GGUF.override(reads=[*MAMBA_GGUF, "ssm.dt_b_c_rms"])
INNER_EPS = 1e-6  # of Falcon-Mamba, for which GGUF has no key


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaConfig(ScanConfig):
    """With norms, without weights, of what the scan reads."""

    inner_eps: float | None  # None: no such norms

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        eps = values.fraction("mixer_rms_eps") if "mixer_rms_eps" in values else None
        inner_eps = INNER_EPS if values.flag("ssm.dt_b_c_rms") else eps
        return cls(**base, scan=read_mamba(base, values, is_gguf), inner_eps=inner_eps)


@architecture(
    "MambaForCausalLM",
    model_type="mamba",
    gguf="mamba",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=MambaConfig,
)
def mamba(g: Graph, c: MambaConfig) -> Value:
    """Pre-norm mixers, one after the other."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, mamba_mixer(g, c, layer, h, norm_eps=c.inner_eps))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
