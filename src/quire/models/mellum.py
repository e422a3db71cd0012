"""Mellum 2: Qwen3-MoE with a window in some layers, which have a rope of their own. It may have a head for drafting."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from quire.graph.graph import Graph, Layer, Value
from quire.models.config import SLIDING, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.mellum_config import CONFIG, MellumConfig
from quire.models.mixtral import mixtral, mixtral_layer
from quire.models.moe import with_experts
from quire.models.mtp import DrawLayer, MtpHead
from quire.models.qwen3 import NAMES as DENSE_NAMES
from quire.models.registry import architecture


@architecture(
    "MellumForCausalLM",
    model_type="mellum",
    names=with_experts(DENSE_NAMES).but(ignored=r"^mtp\."),  # the head
    keys=ConfigKeys(CONFIG),
    config=MellumConfig,
)
def mellum(g: Graph, c: MellumConfig) -> Value:
    """The windows and the ropes are in the configuration."""
    return mixtral(g, c, head_norm="rms")


def mellum_layer(g: Graph, c: MellumConfig, layer: Layer, x: Value) -> Value:
    """Draw a layer."""
    return mixtral_layer(g, c, layer, x, head_norm="rms")


@dataclass(frozen=True, slots=True)
class MellumHead(MtpHead):
    """A head whose layer may have a window."""

    draw_layer: DrawLayer = field(default=mellum_layer)

    def config_of(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration with the layer of the head."""
        assert isinstance(config, MellumConfig)
        window = config.window if config.head_type == SLIDING else None
        return replace(
            config,
            num_layers=1,
            layer_types=(config.head_type,),
            windows=(window,),
            sparse=(config.head_is_sparse,),
            extra_layers=0,
        )
