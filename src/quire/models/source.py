"""Encoder-decoder models: a decoder that reads what an encoder has computed of a source.

A model is three graphs. The encoder turns a source (tokens, or features) into a row of numbers for each of its tokens.
The pairs turn such rows into keys and values of each of the decoder's layers of cross-attention. The decoder is drawn
like any other model; it reads the pairs from blocks (`Cross`), into which they are stored once for each source.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.graph.graph import Graph, Layer, Value
from quire.graph.weight import StackedTensor, Weight, Weights, computed_weight
from quire.models.config import CheckpointSource, ModelConfig
from quire.models.keys import BASE_HARMLESS, FOREIGN, KeySet
from quire.models.names import Names, TensorName, bind_weights
from quire.models.rope import FULL
from quire.ops import attention, select
from quire.ops.cache import Cross
from quire.ops.source import attention_source

Array = NDArray[Any]
Heads = tuple[tuple[int, int], ...]  # of layer and head
PAIRS = "pairs"
HIDDEN = ("hidden",)
GENERATION = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "num_beams", "max_length",
              "min_length", "length_penalty", "early_stopping", "no_repeat_ngram_size", "bad_words_ids",
              "task_specific_params", "prefix")  # how to generate: the text side reads what matters  # fmt: skip
TRAINING = ("dropout", "dropout_rate", "attention_dropout", "activation_dropout", "classifier_dropout",
            "encoder_layerdrop", "decoder_layerdrop", "initializer_factor", "gradient_checkpointing")  # fmt: skip
SOURCE_CONFIG = KeySet(
    read=frozenset({
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings", "hidden_act", "tie_word_embeddings", "eos_token_id", "initializer_range",
        "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim",
    }),
    harmless=BASE_HARMLESS | {*GENERATION, *TRAINING, "encoder_no_repeat_ngram_size"},
    fixed={"is_encoder_decoder": (True,), "is_decoder": (None, False), "quantization_config": (None,)},
    foreign={**FOREIGN, "activation_function": (None,)},
    spelling={
        "hidden_size": "d_model", "num_hidden_layers": "decoder_layers", "intermediate_size": "decoder_ffn_dim",
        "num_attention_heads": "decoder_attention_heads", "hidden_act": "activation_function",
        "initializer_range": "init_std",
    },
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu"},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceModel:
    """What an encoder-decoder architecture has beside its decoder."""

    names: Names  # of the encoder
    pairs: Names  # of `cross.k` and `cross.v` of the decoder's layers
    config: Callable[[Any], ModelConfig]  # the encoder's numbers, from those of the decoder
    draw: Callable[[Graph, Any], Value]  # the encoder: its last value is its output
    alignment: Callable[[Any], Heads] = lambda config: ()  # heads whose attention shows where a token is in its source


@dataclass(frozen=True, slots=True)
class DrawnSource:
    """The graphs that compute a source. Both have their output where others have logits: for tokens of `logits_at`."""

    encoder: Graph
    pairs: Graph  # takes features as wide as the encoder's output
    weights: Weights  # of both
    max_tokens: int  # of a source
    num_features: int  # of a token of a source; 0: sources are token ids
    aligned_keys: Array  # the columns of the pairs that are keys of the heads of `alignment`


def draw_source(checkpoint: CheckpointSource, config: ModelConfig, source: SourceModel) -> DrawnSource:
    """Bind the weights of the encoder and of the pairs, and draw both."""
    own = source.config(replace(config, tied=False))
    weights = bind_weights(checkpoint, own, source.names)
    own = own.complete(weights)
    encoder = Graph.over(weights)
    output_rows(encoder, source.draw(encoder, own))
    found = bind_weights(checkpoint, replace(config, tied=False), source.pairs)
    pairs = Graph.over(found)
    _draw_pairs(pairs, found, config)
    features = next((node.output.dim for node in encoder.nodes if node.op.name == "features"), 0)
    used = {name: weights[name] for name in encoder.weight_names()}
    aligned = key_columns(source.alignment(config), config)
    return DrawnSource(encoder, pairs, used | found, own.max_context, features, aligned)


def key_columns(heads: Heads, c: ModelConfig) -> Array:
    """Return the columns of these heads' keys, in rows that have keys, then values, of each layer in order."""
    firsts = np.array([(2 * layer * c.num_heads + head) * c.head_dim for layer, head in heads], np.int64)
    return (firsts[:, None] + np.arange(c.head_dim)).reshape(-1)


def _draw_pairs(g: Graph, weights: dict[str, Weight], c: ModelConfig) -> None:
    """Keys, then values, of the layers in order, by one product."""
    words = [f"layers.{layer}.cross.{word}" for layer in range(c.num_layers) for word in "kv"]
    parts = [weights[word] for word in words]
    stack = StackedTensor(PAIRS, tuple(part.source for part in parts))
    joined = {PAIRS: Weight(PAIRS, (sum(part.shape[0] for part in parts), c.hidden), parts[0].format, stack)}
    if any(f"{word}.bias" in weights for word in words):
        biases = [np.zeros(part.shape[0]) if (bias := weights.get(f"{part.name}.bias")) is None else bias.float32()
                for part in parts]  # fmt: skip
        joined[f"{PAIRS}.bias"] = computed_weight(f"{PAIRS}.bias", np.concatenate(biases))
    weights.clear()
    weights.update(joined)
    g.shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    g.outputs["logits"] = g.linear(g.draw(select.select, {"x": g.features(c.hidden)}, {}), PAIRS)


# --- what decoders and encoders are drawn with


def output_rows(g: Graph, x: Value) -> None:
    """The rows of x of the step's `logits_at` are the graph's output."""
    g.outputs["logits"] = g.draw(select.select, {"x": x}, {})


def attend_row(g: Graph, c: ModelConfig, layer: Layer, h: Value, *, scale: float, **extras: str | None) -> Value:
    """Compute q, k and v of h, attention of every token to all of its row, and the product with `attn.out`."""
    qkv = {word: g.linear(h, layer[f"attn.{word}"]) for word in "qkv"}
    names = {name: extras.get(name) for name in attention.EXTRAS}
    attrs = {"num_heads": c.num_heads, "scale": scale, "softcap": 0.0, "window": None}
    out = g.draw(attention.attention_bidirectional, qkv, names, **attrs)
    return g.linear(out, layer["attn.out"])


def attend_cross(g: Graph, c: ModelConfig, layer: Layer, h: Value, *, scale: float) -> Value:
    """Attention of h to its row's source, and the product with `cross.out`."""
    return attend_by(g, c, layer, g.linear(h, layer["cross.q"]), scale=scale)


def attend_by(g: Graph, c: ModelConfig, layer: Layer, q: Value, *, scale: float) -> Value:
    """Draw the same attention with given queries."""
    cache = g.cache(Cross(c.num_heads, c.head_dim, c.head_dim))
    node = g.node(attention_source, {"q": q}, {}, {"scale": scale}, cache=cache.index)
    g.nodes.append(node)
    return g.linear(node.output, layer["cross.out"])


def source_numbers(c: ModelConfig, num_layers: int, num_heads: int, ffn: int, max_tokens: int) -> dict[str, Any]:
    """Fields by which an encoder's configuration differs from its decoder's."""
    return {
        "num_layers": num_layers, "num_heads": num_heads, "num_kv_heads": num_heads, "ffn": ffn,
        "head_dim": c.hidden // num_heads, "max_context": max_tokens, "tied": False,
        "layer_types": (FULL,) * num_layers, "windows": (None,) * num_layers,
    }  # fmt: skip


def pair_names(layers: str, block: str, *biased: str) -> Names:
    """Names of keys and values of cross-attention; all other tensors are of the decoder and the encoder."""
    entries = {f"cross.{word}": TensorName(f"{block}.{word}{'_proj' if '_' in block else ''}", f"cross_attn_{word}",
                                           ("kv", "hidden"), word in biased) for word in "kv"}  # fmt: skip
    pattern = rf"{re.escape(block)}\.[kv](_proj)?\.|\.cross_attn_[kv]\."
    return Names(entries, layers=layers, gguf_layers="dec.blk", ignored=re.compile(rf"^(?!.*({pattern}))"))


def distances(table: Array, reach: int, *, is_causal: bool) -> Array:
    """Biases of heads by distance [heads, 2 * reach + 1], of T5's table [buckets, heads].

    Half of the buckets are single distances, the others are wider the further they are, up to `reach`. Tokens behind
    the query have buckets of their own, unless a query reads none of them.
    """
    offsets = np.arange(-reach, reach + 1)
    num_buckets = len(table) if is_causal else len(table) // 2
    base = np.where(offsets > 0, 0 if is_causal else num_buckets, 0)
    far = np.where(offsets > 0, 0, -offsets) if is_causal else np.abs(offsets)
    exact = num_buckets // 2
    with np.errstate(divide="ignore"):
        logs = np.log(far.astype(np.float32) / np.float32(exact)) / np.float32(np.log(reach / exact))
    wide = np.minimum(exact + (np.maximum(logs, 0) * np.float32(num_buckets - exact)).astype(np.int64), num_buckets - 1)
    spread: Array = table[base + np.where(far < exact, far, wide)].T
    return spread


def sinusoids(num_positions: int, dim: int) -> Array:
    """A table of positions: sines of the first half of the columns, cosines of the second."""
    rates = np.power(10000.0, -2 * (np.arange(dim) // 2) / dim)
    angles = np.arange(num_positions)[:, None] * rates[None, :]
    return np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1).astype(np.float32)
