"""BERT with rope in place of learned positions: what nomic-bert, GTE and Jina v3 share."""

from __future__ import annotations

from collections.abc import Callable

from quire.graph.graph import Graph, Layer, Value
from quire.models.blocks import rotate
from quire.models.encoder import ENCODER_CONFIG, HIDDEN, EncoderConfig, attend_all, post_norm_block
from quire.models.keys import KeySet
from quire.models.llama import ROPE_KEYS
from quire.models.names import TensorName
from quire.ops import embed

ROTARY_CONFIG: KeySet = ENCODER_CONFIG.override(reads=[*ROPE_KEYS, "head_dim"])
QKV_ROWS = {"attn.q": "q", "attn.k": "kv", "attn.v": "kv"}
NOT_READ = r"^pooler\.|^lm_head\.|^cls\."


def embeddings_of(norm: str) -> dict[str, TensorName]:
    """The tables of tokens and types, and the norm of their sum under this name."""
    return {
        "embed": TensorName("embeddings.word_embeddings", "token_embd", ("vocab", "hidden")),
        "types": TensorName(
            "embeddings.token_type_embeddings",
            "token_types",
            ("types", "hidden"),
            only=lambda c, _: c.num_types > 0,
        ),
        "embed_norm": TensorName(norm, "token_embd_norm", HIDDEN, True),
    }


def encode_rotary(g: Graph, c: EncoderConfig, feed_forward: Callable[[Layer, Value], Value]) -> Value:
    """The vectors of all tokens."""
    x = g.embed("embed")
    if c.num_types:
        x = g.add(x, g.draw(embed.embed_types, {}, {"table": "types"}))
    x = g.layer_norm(x, "embed_norm", eps=c.norm_eps)
    for layer in g.layers(c.num_layers):
        q, k, v = (g.linear(x, layer[f"attn.{word}"]) for word in "qkv")
        mixed = attend_all(g, c, (rotate(g, c, layer, q), rotate(g, c, layer, k), v))
        x = post_norm_block(g, c, layer, x, mixed, lambda h, layer=layer: feed_forward(layer, h))
    return x
