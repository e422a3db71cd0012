"""OLMo-Hybrid: the gated delta rule in most layers, the blocks of OLMo 2 in the others, with rope or without."""

from __future__ import annotations

from dataclasses import replace

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.delta import convolved, delta_entries, delta_heads_of
from quire.models.hybrid import attention_in_some, has_attention, has_recurrence
from quire.models.keys import ConfigKeys
from quire.models.names import Stored, TensorName
from quire.models.olmo2 import NAMES as OLMO2_NAMES
from quire.models.olmo_hybrid_config import CONFIG, OlmoHybridConfig
from quire.models.registry import architecture

HEAD_EPS = 1e-5  # of the norm of heads, whatever the configuration says of other norms
WORDS = {"delta.gate": "g_proj", "delta.beta": "b_proj", "delta.decay": "a_proj", "delta.norm": "o_norm",
         "delta.out": "o_proj"}  # fmt: skip
SIZES = {"q": "delta_keys", "k": "delta_keys", "v": "delta_values"}
DELTA = delta_entries("linear_attn")


def _tensor(name: str | Stored, *shape: str) -> TensorName:
    return TensorName(name, None, shape, only=has_recurrence)


def _kernel(word: str) -> TensorName:
    stored = Stored(f"linear_attn.{word}_conv1d", shape=(SIZES[word], "one", "taps"))
    return _tensor(stored, SIZES[word], "taps")


NAMES = attention_in_some(OLMO2_NAMES).marked("mlp.post_norm", only=has_attention).but(
    {
        **{word: replace(DELTA[word], safetensors=f"linear_attn.{name}") for word, name in WORDS.items()},
        **{word: DELTA[word] for word in ("delta.rate", "delta.shift")},
        **{f"delta.{word}": _tensor(f"linear_attn.{word}_proj", SIZES[word], "hidden") for word in "qkv"},
        **{f"delta.{word}_kernel": _kernel(word) for word in "qkv"},
        "attn.norm": _tensor("attention_layer_norm", "hidden"),
        "mlp.norm": _tensor("feedforward_layer_norm", "hidden"),
    }
)  # fmt: skip


@architecture(
    "OlmoHybridForCausalLM", model_type="olmo_hybrid", names=NAMES, keys=ConfigKeys(CONFIG), config=OlmoHybridConfig
)
def olmo_hybrid(g: Graph, c: OlmoHybridConfig) -> Value:
    """Layers with attention norm the output of each block, the others its input."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = (_attention_layer if has_attention(c, layer.index) else _recurrent_layer)(g, c, layer, x)
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")


def _attention_layer(g: Graph, c: OlmoHybridConfig, layer: Layer, x: Value) -> Value:
    h = attend(g, c, layer, x, head_norm="wide", rotates=bool(c.ropes))
    x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
    return g.add(x, g.rms_norm(gated_mlp(g, layer, x, "silu"), layer["mlp.post_norm"], eps=c.norm_eps))


def _recurrent_layer(g: Graph, c: OlmoHybridConfig, layer: Layer, x: Value) -> Value:
    h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
    x = g.add(x, delta_heads_of(g, layer, h, convolved(g, layer, h, "delta"), c.delta, eps=HEAD_EPS))
    return g.add(x, gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "silu"))
