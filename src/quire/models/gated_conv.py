"""The gated short convolution of LFM2: its numbers, its tensors, and how it is drawn."""

from __future__ import annotations

from typing import Any

from quire.graph.graph import Graph, Layer, Value
from quire.models.hybrid import attention_in_some, has_recurrence, types_by_heads, types_where
from quire.models.keys import KeySet
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import Names, Stored, TensorName, parts_of
from quire.models.values import Values

CONV = "conv"  # the type of a layer with a convolution
BIASED = ("conv.b", "conv.c", "conv.x", "conv.kernel", "conv.out")
CONV_CONFIG: KeySet = LLAMA_CONFIG.override(
    reads=["layer_types", "conv_bias", "conv_L_cache"],
    ignores=["attention_bias", "mlp_bias"],
    spelling={"rms_norm_eps": "norm_eps"},
    synonyms={"tie_embedding": "tie_word_embeddings"},
    defaults={"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "rope_theta": 1000000.0, "eos_token_id": 2,
              "tie_word_embeddings": True, "conv_L_cache": 3},
    biases={"conv_bias": BIASED},
    layer_types=[CONV],
)  # fmt: skip
CONV_GGUF: KeySet = LLAMA_GGUF.override(reads=["shortconv.l_cache"], by_layer=["attention.head_count_kv"])

_PARTS = parts_of("conv.in_proj", "shortconv.in_proj", dict.fromkeys(("conv.b", "conv.c", "conv.x"), "hidden"))
CONV_NAMES: Names = attention_in_some(
    LLAMA_NAMES.but(
        {
            "attn.norm": TensorName("operator_norm", "attn_norm", ("hidden",)),
            "attn.q_norm": TensorName("self_attn.q_layernorm", "attn_q_norm", ("head_dim",)),
            "attn.k_norm": TensorName("self_attn.k_layernorm", "attn_k_norm", ("head_dim",)),
            "attn.out": TensorName("self_attn.out_proj", "attn_output", ("hidden", "q")),
            "mlp.norm": TensorName("ffn_norm", "ffn_norm", ("hidden",)),
            "mlp.gate": TensorName("feed_forward.w1", "ffn_gate", ("ffn", "hidden")),
            "mlp.up": TensorName("feed_forward.w3", "ffn_up", ("ffn", "hidden")),
            "mlp.down": TensorName("feed_forward.w2", "ffn_down", ("hidden", "ffn")),
            "norm": TensorName("model.embedding_norm", "token_embd_norm", ("hidden",)),
            **_PARTS,
            "conv.kernel": TensorName(
                Stored("conv.conv", shape=("hidden", "one", "taps")), "shortconv.conv", ("hidden", "taps")
            ),
            "conv.out": TensorName("conv.out_proj", "shortconv.out_proj", ("hidden", "hidden")),
        }
    )
).marked(*BIASED, only=has_recurrence)


def read_conv(base: dict[str, Any], values: Values, is_gguf: bool) -> dict[str, Any]:
    """The types of the layers, and how many tokens a convolution reads. Older files list the layers with attention."""
    if is_gguf:
        return {"layer_types": types_by_heads(base, values, CONV), "taps": values.size("shortconv.l_cache")}
    types = base["layer_types"]
    if "layer_types" not in values and "full_attn_idxs" in values:
        listed = values.integers("full_attn_idxs")
        types = types_where((layer not in listed for layer in range(base["num_layers"])), base, CONV)
    return {"layer_types": types, "taps": values.size("conv_L_cache")}


def convolve(g: Graph, layer: Layer, h: Value) -> Value:
    """c * convolution(b * x), then `conv.out`; b, c and x are linears of h."""
    b, gate, x = (g.linear(h, layer[f"conv.{word}"]) for word in "bcx")
    return g.linear(g.multiply(gate, g.short_conv(g.multiply(b, x), layer["conv.kernel"])), layer["conv.out"])
