"""EXAONE 4: norms after each block and on heads; beside layers with a window, layers with none have no rope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import SLIDING, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF
from quire.models.names import TensorName
from quire.models.olmo2 import NAMES as OLMO2_NAMES
from quire.models.registry import architecture
from quire.models.values import Values

NAMES = OLMO2_NAMES.but(
    {
        "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
        "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",)),
    }
)
CONFIG = LLAMA_CONFIG.override(
    reads=["sliding_window", "sliding_window_pattern", "layer_types"],
    ignores=["attention_bias", "mlp_bias"],
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4, "num_key_value_heads": 32,
              "eos_token_id": 2},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Exaone4Config(ModelConfig):
    """With the layers that rotate."""

    rotates: tuple[bool, ...]

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        window = values.integer_or_none("attention.sliding_window" if is_gguf else "sliding_window")
        return cls(**base, rotates=tuple(not window or kind == SLIDING for kind in base["layer_types"]))


@architecture(
    "Exaone4ForCausalLM",
    model_type="exaone4",
    gguf="exaone4",
    names=NAMES,
    keys=ConfigKeys(CONFIG, LLAMA_GGUF),
    config=Exaone4Config,
)
def exaone4(g: Graph, c: Exaone4Config) -> Value:
    """Each block reads the residual stream as it is; its output is normed, then added."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = attend(g, c, layer, x, head_norm="rms", rotates=c.rotates[layer.index])
        x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
        x = g.add(x, g.rms_norm(gated_mlp(g, layer, x, "silu"), layer["mlp.post_norm"], eps=c.norm_eps))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
