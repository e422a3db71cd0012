"""T5: names of tensors, keys and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quire.graph.weight import Weight, computed_weight
from quire.models.config import KEY_LENGTH, ModelConfig
from quire.models.keys import KeySet
from quire.models.names import Names, TensorName
from quire.models.rope import FULL
from quire.models.source import (
    HIDDEN,
    SOURCE_CONFIG,
    distances,
)  # fmt: skip
from quire.models.values import Values

CROSS, BIAS, MAX_TOKENS = "layer.1.EncDecAttention", "attn.bias", 2048  # no table limits a text; memory does
REACH = 128  # of the buckets, where no key has it
ACTIVATIONS = {"relu": ("relu", False), "gelu": ("gelu", False), "gated-gelu": ("gelu_tanh", True),
               "gated-silu": ("silu", True), "gated-relu": ("relu", True)}  # fmt: skip


def _attention(word: str, block: str, words: str, norm: str) -> dict[str, TensorName]:
    gguf = "cross_attn" if word == "cross" else word
    linears = {f"{word}.{each}": TensorName(f"{block}.{each}", f"{gguf}_{each}", ("q", "hidden")) for each in words}
    return {**linears, f"{word}.out": TensorName(f"{block}.o", f"{gguf}_o", ("hidden", "q")),
            f"{word}.norm": TensorName(f"{norm}.layer_norm", f"{gguf}_norm", HIDDEN)}  # fmt: skip


def _names(side: str, last: int, more: dict[str, TensorName], ignored: str) -> Names:
    """The stacks differ in their last block's number. The first layer has the table of biases for all."""
    dense = f"layer.{last}.DenseReluDense"
    table = TensorName("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b", ("buckets", "heads"),
                       only=lambda c, layer: layer == 0)  # fmt: skip
    return Names({
        "embed": TensorName("shared", "token_embd", ("vocab", "hidden")), BIAS: table,
        **_attention("attn", "layer.0.SelfAttention", "qkv", "layer.0"), **more,
        "mlp.norm": TensorName(f"layer.{last}.layer_norm", "ffn_norm", HIDDEN),
        "mlp.gate": TensorName(f"{dense}.wi_0", "ffn_gate", ("ffn", "hidden"), only=lambda c, _: c.is_gated),
        "mlp.up": TensorName(f"{dense}.wi_1", "ffn_up", ("ffn", "hidden"), only=lambda c, _: c.is_gated),
        "mlp.wide": TensorName(f"{dense}.wi", "ffn_up", ("ffn", "hidden"), only=lambda c, _: not c.is_gated),
        "mlp.down": TensorName(f"{dense}.wo", "ffn_down", ("hidden", "ffn")),
        "norm": TensorName(f"{side}.final_layer_norm", f"{side[:3]}.output_norm", HIDDEN),
    }, layers=f"{side}.block", gguf_layers=f"{side[:3]}.blk").but(
        ignored=rf"\.embed_tokens\.weight$|\.cross_attn_rel_b\.|{ignored}"
    )  # fmt: skip


ENCODER = _names("encoder", 1, {}, r"^dec(oder)?\.|^lm_head|^output\.")
OTHERS = r"^enc(oder)?\.|EncDecAttention\.[kv]\.|\.cross_attn_[kv]\."
DECODER = _names("decoder", 2, _attention("cross", CROSS, "q", "layer.1"), OTHERS).but(
    {"head": TensorName("lm_head", "output", ("vocab", "hidden"))}, ignored=r"EncDecAttention\.relative_attention_bias"
)
KEYS = SOURCE_CONFIG.override(
    reads=["head_dim", "feed_forward_proj", "relative_attention_num_buckets", "relative_attention_max_distance",
           "rms_norm_eps", "scale_decoder_outputs"],
    lacks=["hidden_act", "encoder_attention_heads", "encoder_ffn_dim", "initializer_range"],
    ignores=["dense_act_fn", "is_gated_act", "n_positions", "output_past", "tokenizer_class"],
    spelling={"encoder_layers": "num_layers", "num_hidden_layers": "num_decoder_layers", "head_dim": "d_kv",
              "num_attention_heads": "num_heads", "intermediate_size": "d_ff", "rms_norm_eps": "layer_norm_epsilon"},
    defaults={"max_position_embeddings": MAX_TOKENS, "relative_attention_num_buckets": 32,
              "relative_attention_max_distance": REACH, "feed_forward_proj": "relu", "tie_word_embeddings": True},
)  # fmt: skip
GGUF_KEYS = KeySet(
    read=frozenset({
        "block_count", "decoder_block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", KEY_LENGTH, "attention.value_length", "attention.layer_norm_rms_epsilon",
        "attention.relative_buckets_count", "is_gated_act",
    }),
    # text/source_text.py reads the last
    harmless=frozenset({"vocab_size", "attention.layer_norm_epsilon", "decoder_start_token_id"}),
    tensors={"is_gated_act": "dec.blk.0.ffn_gate.weight"}, is_closed=True, head_dim=KEY_LENGTH,
)  # fmt: skip
MT5_KEYS = KEYS.override(defaults={"scale_decoder_outputs": False, "feed_forward_proj": "gated-gelu"})


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Config(ModelConfig):
    """With the table of biases, and whether logits are scaled: files without a head of their own scale them."""

    source_layers: int
    is_gated: bool
    scales: bool
    buckets: int
    reach: int
    is_encoder: bool = False

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        if is_gguf:
            return cls._of_gguf(base, values)
        kind = values.text("feed_forward_proj", "relu")
        if kind not in ACTIVATIONS:
            raise values.refusal("feed_forward_proj", f"one of {', '.join(ACTIVATIONS)}")
        scales = values.flag("scale_decoder_outputs") if "scale_decoder_outputs" in values else base["tied"]
        base |= {"tied": True, "activation": ACTIVATIONS[kind][0]}  # a file with a head of its own is not tied
        sizes = map(values.size, ("encoder_layers", "relative_attention_num_buckets",
                                  "relative_attention_max_distance"))  # fmt: skip
        layers, buckets, reach = sizes
        return cls(**base, source_layers=layers, is_gated=ACTIVATIONS[kind][1], scales=scales, buckets=buckets,
                   reach=reach)  # fmt: skip

    @classmethod
    def _of_gguf(cls, base: dict[str, Any], values: Values) -> Self:
        """The blocks are those of the encoder, and no key has the activation: llama.cpp's converter knows two."""
        layers = values.size("decoder_block_count", base["num_layers"])
        is_gated = values.flag("is_gated_act")
        own = {"num_layers": layers, "layer_types": (FULL,) * layers, "windows": (None,) * layers, "tied": True,
               "max_context": MAX_TOKENS, "activation": "gelu_tanh" if is_gated else "relu"}  # fmt: skip
        return cls(**{**base, **own}, source_layers=base["num_layers"], is_gated=is_gated, scales=base["tied"],
                   buckets=values.size("attention.relative_buckets_count"), reach=REACH)  # fmt: skip

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        return ModelConfig.sizes(self, layer) | {"buckets": self.buckets}

    def complete(self, weights: dict[str, Weight]) -> Self:
        """Spread the table of buckets over distances."""
        table = weights.pop(f"layers.0.{BIAS}").float32()  # [buckets, heads]
        spread = distances(table, self.reach, is_causal=not self.is_encoder)
        weights["distances"] = computed_weight("distances", np.ascontiguousarray(spread))
        return self
