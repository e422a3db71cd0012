"""DistilBERT: BERT without types of tokens."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import mlp
from quire.models.encoder import (
    ENCODER_CONFIG,
    HIDDEN,
    EncoderConfig,
    attend_all,
    classified,
    embed_texts,
    pooled,
    post_norm_block,
)
from quire.models.keys import ConfigKeys
from quire.models.names import Names, TensorName
from quire.models.registry import alias, architecture
from quire.ops import pool

NAMES = Names(
    {
        "embed": TensorName("distilbert.embeddings.word_embeddings", None, ("vocab", "hidden")),
        "positions": TensorName("distilbert.embeddings.position_embeddings", None, ("positions", "hidden")),
        "embed_norm": TensorName("distilbert.embeddings.LayerNorm", None, HIDDEN, True),
        "attn.q": TensorName("attention.q_lin", None, ("q", "hidden"), True),
        "attn.k": TensorName("attention.k_lin", None, ("kv", "hidden"), True),
        "attn.v": TensorName("attention.v_lin", None, ("kv", "hidden"), True),
        "attn.out": TensorName("attention.out_lin", None, ("hidden", "q"), True),
        "attn.norm": TensorName("sa_layer_norm", None, HIDDEN, True),
        "mlp.up": TensorName("ffn.lin1", None, ("ffn", "hidden"), True),
        "mlp.down": TensorName("ffn.lin2", None, ("hidden", "ffn"), True),
        "mlp.norm": TensorName("output_layer_norm", None, HIDDEN, True),
    },
    layers="distilbert.transformer.layer",
).but(ignored=r"^vocab_(transform|layer_norm|projector)\.")
WITH_HEAD = NAMES.but(
    {
        "pooler": TensorName("pre_classifier", None, ("hidden", "hidden"), True),
        "score": TensorName("classifier", None, ("labels", "hidden"), True),
    }
)
CONFIG = ENCODER_CONFIG.override(
    ignores=["dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout", "output_past"],
    lacks=["type_vocab_size", "rms_norm_eps"], fixed={"sinusoidal_pos_embds": (None, False)},
    spelling={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
              "intermediate_size": "hidden_dim", "hidden_act": "activation"},
    defaults={"rms_norm_eps": 1e-12, "type_vocab_size": None, "max_position_embeddings": 512, "intermediate_size": 3072,
              "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "vocab_size": 30522},
)  # fmt: skip
KEYS = ConfigKeys(CONFIG)


def _encode(g: Graph, c: EncoderConfig) -> Value:
    x = embed_texts(g, c, has_types=False)
    for layer in g.layers(c.num_layers):
        qkv = (g.linear(x, layer["attn.q"]), g.linear(x, layer["attn.k"]), g.linear(x, layer["attn.v"]))
        x = post_norm_block(
            g, c, layer, x, attend_all(g, c, qkv), lambda h, layer=layer: mlp(g, layer, h, c.activation)
        )
    return x


@architecture("DistilBertModel", model_type="distilbert", names=NAMES, keys=KEYS, config=EncoderConfig)
def distilbert(g: Graph, c: EncoderConfig) -> Value:
    """A vector of the text."""
    return pooled(g, _encode(g, c))


@architecture("DistilBertForSequenceClassification", model_type="distilbert", names=WITH_HEAD, keys=KEYS,
              config=EncoderConfig)  # fmt: skip
def distilbert_classifier(g: Graph, c: EncoderConfig) -> Value:
    """Classes, or the score of a pair of texts."""
    first = g.draw(pool.pool, {"x": _encode(g, c)}, {})
    return classified(g, g.activation(g.linear(first, "pooler"), "relu"))


alias("DistilBertForMaskedLM", of="DistilBertModel", model_type="distilbert")  # its head is not read
