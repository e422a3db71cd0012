"""GraniteMoeShared: Granite-MoE with an expert that all tokens use. Its GGUF files have the same architecture."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.granitemoe import CONFIG, NAMES, GraniteMoeConfig, granitemoe
from quire.models.keys import ConfigKeys
from quire.models.registry import architecture

WIDTH = "shared_expert_intermediate_size"
KEYS = CONFIG.override(reads=[WIDTH], spelling={WIDTH: "shared_intermediate_size"})


@architecture(
    "GraniteMoeSharedForCausalLM",
    model_type="granitemoeshared",
    names=NAMES,
    keys=ConfigKeys(KEYS),
    config=GraniteMoeConfig,
)
def granitemoeshared(g: Graph, c: GraniteMoeConfig) -> Value:
    """The shared expert is in the names."""
    return granitemoe(g, c)
