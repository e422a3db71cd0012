"""The shapes of public encoders, for benchmarks with random weights."""

from __future__ import annotations

from typing import Any, NamedTuple

LONGEST = 512  # tokens of a text


class EncoderShape(NamedTuple):
    """The sizes of a BERT."""

    hidden: int
    ffn: int
    num_layers: int
    num_heads: int


SHAPES = {
    "minilm-l6": EncoderShape(384, 1536, 6, 12),
    "bge-base": EncoderShape(768, 3072, 12, 12),
    "bge-large": EncoderShape(1024, 4096, 24, 16),
}


def encoder_config(shape: EncoderShape, vocab_size: int) -> dict[str, Any]:
    """Return the config.json of a BERT of this shape."""
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": LONGEST,
    }
