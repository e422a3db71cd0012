"""OLMo 3: OLMo 2 with a window in three of four layers, which have a rope of their own. Its GGUF files say `olmo2`."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.olmo2 import CONFIG, NAMES, olmo2
from quire.models.registry import architecture

# Beside rope_parameters, transformers takes theta of layers with a window from no key.
THETAS = {"rope_theta": 500000.0, "rope_local_base_freq": 500000.0}
KEYS = CONFIG.override(
    reads=["sliding_window", "layer_types"],
    lacks=["use_sliding_window", "max_window_layers", "original_max_position_embeddings"],
    defaults={"sliding_window": 4096, "sliding_window_pattern": 4, **THETAS},
    rope=RopeRules(by_layer_type=True),
)


@architecture("Olmo3ForCausalLM", model_type="olmo3", names=NAMES, keys=ConfigKeys(KEYS))
def olmo3(g: Graph, c: ModelConfig) -> Value:
    """The windows and the ropes are in the configuration."""
    return olmo2(g, c)
