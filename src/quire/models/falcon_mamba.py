"""Falcon-Mamba: Mamba with norms of what the scan reads. Its GGUF files have the same architecture."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.keys import ConfigKeys
from quire.models.mamba import CONFIG, INNER_EPS, NAMES, MambaConfig, mamba
from quire.models.registry import architecture

KEYS = ConfigKeys(CONFIG.override(reads=["mixer_rms_eps"], defaults={"mixer_rms_eps": INNER_EPS}))


@architecture("FalconMambaForCausalLM", model_type="falcon_mamba", names=NAMES, keys=KEYS, config=MambaConfig)
def falcon_mamba(g: Graph, c: MambaConfig) -> Value:
    """The norms are in the configuration."""
    return mamba(g, c)
