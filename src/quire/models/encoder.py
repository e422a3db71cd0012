"""What encoders share: keys, sizes, the blocks that they are drawn with, and heads of classes.

An encoder reads a whole text in one step: every token attends to all others, and nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Layer, Value
from quire.models.config import ModelConfig
from quire.models.keys import BASE_HARMLESS, FOREIGN, KeySet
from quire.models.values import Values
from quire.ops import attention, embed, pool
from quire.types.kinds import PoolKind

HIDDEN = ("hidden",)
TYPES = "tokenizer.ggml.token_type_count"
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "gradient_checkpointing")
ENCODER_CONFIG = KeySet(
    read=frozenset({
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings", "type_vocab_size", "hidden_act", "rms_norm_eps", "initializer_range",
        "pad_token_id",
    }),
    harmless=BASE_HARMLESS.difference(("pad_token_id",)) | {
        *DROPOUTS, "eos_token_id", "cls_token_id", "sep_token_id", "tie_word_embeddings",  # there is no language head
        "sentence_transformers",  # how a cross-encoder turns scores into probabilities: the text side reads it
    },
    fixed={"is_decoder": (None, False), "add_cross_attention": (None, False)},
    foreign={**FOREIGN, "position_embedding_type": (None, "absolute")},
    spelling={"rms_norm_eps": "layer_norm_eps"},
    defaults={"rms_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2, "pad_token_id": 0},
)  # fmt: skip
ENCODER_GGUF = KeySet(
    read=frozenset({
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_epsilon", TYPES,
    }),
    # embedding.py reads how it is pooled, config.py how many classes there are
    harmless=frozenset({"vocab_size", "pooling_type", "classifier.type", "classifier.output_labels"}),
    fixed={"attention.causal": (False,)},
    defaults={"hidden_act": "gelu", TYPES: 2},
    is_closed=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """With types of tokens, and the row of the first position."""

    num_types: int
    first_position: int = 0  # row of the table of positions: RoBERTa begins behind the padding token's

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**base, num_types=num_types(values, is_gguf))

    @property
    def classifier_pool(self) -> PoolKind:
        """By its first token."""
        return PoolKind.CLS

    def sizes(self, layer: int | None = None) -> dict[str, int]:
        """With the rows of the tables."""
        rows = {"positions": self.max_context + self.first_position, "types": self.num_types}
        return ModelConfig.sizes(self, layer) | rows


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterPaddingConfig(EncoderConfig):
    """Positions begin behind the padding token's row, as in RoBERTa. GGUF files have cut those rows off."""

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        first = 0 if is_gguf else values.integer("pad_token_id") + 1
        base["max_context"] -= first
        return cls(**base, num_types=num_types(values, is_gguf), first_position=first)


def num_types(values: Values, is_gguf: bool) -> int:
    """The number of types of tokens. GGUF files have the two of BERT, or say another number."""
    return values.integer_or_none(TYPES if is_gguf else "type_vocab_size") or 0


# --- drawing


def embed_texts(g: Graph, c: EncoderConfig, *, has_types: bool = True) -> Value:
    """Sum the embeddings of tokens, positions and types, and norm them."""
    x = g.add(g.embed("embed"), g.embed_positions("positions", offset=c.first_position))
    if has_types:
        x = g.add(x, g.draw(embed.embed_types, {}, {"table": "types"}))
    return g.layer_norm(x, "embed_norm", eps=c.norm_eps)


def attend_all(g: Graph, c: ModelConfig, qkv: tuple[Value, Value, Value], **extras: Any) -> Value:
    """Attention of every token to all tokens of its text, or to those within `window`; `extras` as of attention."""
    weights = {name: extras.pop(name, None) for name in attention.EXTRAS}
    attrs = {"scale": c.head_dim**-0.5, "num_heads": c.num_kv_heads, "softcap": 0.0, "window": None, **extras}
    return g.draw(attention.attention_bidirectional, dict(zip("qkv", qkv, strict=True)), weights, **attrs)


def post_norm_block(g: Graph, c: ModelConfig, layer: Layer, x: Value, mixed: Value, answer: Any) -> Value:
    """The second half of a layer that norms sums: of x and attention, then of that and `answer` of it."""
    x = g.layer_norm(g.add(x, g.linear(mixed, layer["attn.out"])), layer["attn.norm"], eps=c.norm_eps)
    return g.layer_norm(g.add(x, answer(x)), layer["mlp.norm"], eps=c.norm_eps)


def pooled(g: Graph, x: Value) -> Value:
    """One vector of each text: the graph's output."""
    g.outputs["pooled"] = out = g.draw(pool.pool, {"x": x}, {})
    return out


def classified(g: Graph, x: Value) -> Value:
    """A number for each class, from one vector of each text: the graph's output."""
    g.outputs["scores"] = out = g.linear(x, "score")
    return out
