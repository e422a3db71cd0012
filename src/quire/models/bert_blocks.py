"""What BERT and its relatives share: names of tensors, the layers, and the head of classes."""

from __future__ import annotations

from typing import Any

from quire.graph.graph import Graph, Value
from quire.models.blocks import mlp
from quire.models.encoder import HIDDEN, EncoderConfig, attend_all, classified, embed_texts, post_norm_block
from quire.models.names import Names, TensorName
from quire.ops import pool

SQUARE = ("hidden", "hidden")


def bert_names(prefix: str) -> Names:
    """The tensors under this prefix. A file of the model alone does not have it."""
    named = {
        "embed": TensorName(f"{prefix}.embeddings.word_embeddings", "token_embd", ("vocab", "hidden")),
        "positions": TensorName(f"{prefix}.embeddings.position_embeddings", "position_embd", ("positions", "hidden")),
        "types": TensorName(f"{prefix}.embeddings.token_type_embeddings", "token_types", ("types", "hidden")),
        "embed_norm": TensorName(f"{prefix}.embeddings.LayerNorm", "token_embd_norm", HIDDEN, True),
        "attn.q": TensorName("attention.self.query", "attn_q", ("q", "hidden"), True),
        "attn.k": TensorName("attention.self.key", "attn_k", ("kv", "hidden"), True),
        "attn.v": TensorName("attention.self.value", "attn_v", ("kv", "hidden"), True),
        "attn.out": TensorName("attention.output.dense", "attn_output", ("hidden", "q"), True),
        "attn.norm": TensorName("attention.output.LayerNorm", "attn_output_norm", HIDDEN, True),
        "mlp.up": TensorName("intermediate.dense", "ffn_up", ("ffn", "hidden"), True),
        "mlp.down": TensorName("output.dense", "ffn_down", ("hidden", "ffn"), True),
        "mlp.norm": TensorName("output.LayerNorm", "layer_output_norm", HIDDEN, True),
    }
    # the language head, the pooler where it is not read, and buffers of old versions
    ignored = r"\.(position|token_type)_ids$|^cls\.(predictions|seq_relationship)\.|^lm_head\.|(^|\.)pooler\."
    return Names(named, layers=f"{prefix}.encoder.layer").but(ignored=ignored)


def bert_head(pooler: str, score: str) -> dict[str, TensorName]:
    """The tensors of a head of classes: a dense layer, and the classes."""
    return {
        "pooler": TensorName(pooler, "cls", SQUARE, True),
        "score": TensorName(score, "cls.output", ("labels", "hidden"), True),
    }


def encode_tokens(g: Graph, c: EncoderConfig, **extras: Any) -> Value:
    """The vectors of all tokens. `extras`: of attention."""
    x = embed_texts(g, c, has_types=c.num_types > 0)
    for layer in g.layers(c.num_layers):
        qkv = (g.linear(x, layer["attn.q"]), g.linear(x, layer["attn.k"]), g.linear(x, layer["attn.v"]))
        mixed = attend_all(g, c, qkv, **extras)
        x = post_norm_block(g, c, layer, x, mixed, lambda h, layer=layer: mlp(g, layer, h, c.activation))
    return x


def draw_classifier(g: Graph, x: Value) -> Value:
    """Classes from the first token's vector: a dense layer, tanh, and a number for each class."""
    first = g.draw(pool.pool, {"x": x}, {})
    return classified(g, g.activation(g.linear(first, "pooler"), "tanh"))
