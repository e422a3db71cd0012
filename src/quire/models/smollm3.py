"""SmolLM3: Llama in which every fourth layer has no rope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, PAIRED_NAMES
from quire.models.registry import architecture
from quire.models.values import Values

INTERVAL = 4
CONFIG = LLAMA_CONFIG.override(
    reads=["no_rope_layers", "no_rope_layer_interval", "use_sliding_window", "sliding_window", "layer_types"],
    lacks=["max_window_layers"],
    defaults={
        "rope_theta": 2000000.0,
        "num_key_value_heads": 4,
        "no_rope_layer_interval": INTERVAL,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "eos_token_id": 128001,
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolLM3Config(ModelConfig):
    """With the layers that have a rope."""

    rotates: tuple[bool, ...]

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        listed = values.flags("no_rope_layers", base["num_layers"])  # 1: the layer has a rope
        interval = values.size("no_rope_layer_interval", INTERVAL)
        rotates = listed or tuple((i + 1) % interval != 0 for i in range(base["num_layers"]))
        if "layer_types" not in values:  # windows are those of the layers without rope
            base["windows"] = tuple(None if each else w for each, w in zip(rotates, base["windows"], strict=True))
        return cls(**base, rotates=rotates)


@architecture(
    "SmolLM3ForCausalLM",
    model_type="smollm3",
    gguf="smollm3",
    names=PAIRED_NAMES,
    keys=ConfigKeys(CONFIG, LLAMA_GGUF),
    config=SmolLM3Config,
)
def smollm3(g: Graph, c: SmolLM3Config) -> Value:
    """Pre-norm decoder."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, rotates=c.rotates[layer.index]))
        x = g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
