"""MPNet: BERT without types of tokens, whose attention adds a number by distance, the same in all layers."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.bert_blocks import bert_head, draw_classifier, encode_tokens
from quire.models.encoder import HIDDEN, pooled
from quire.models.keys import ConfigKeys
from quire.models.mpnet_config import CONFIG, MPNetConfig
from quire.models.names import Names, TensorName
from quire.models.registry import alias, architecture

NAMES = Names(
    {
        "embed": TensorName("mpnet.embeddings.word_embeddings", None, ("vocab", "hidden")),
        "positions": TensorName("mpnet.embeddings.position_embeddings", None, ("positions", "hidden")),
        "embed_norm": TensorName("mpnet.embeddings.LayerNorm", None, HIDDEN, True),
        "buckets": TensorName("mpnet.encoder.relative_attention_bias", None, ("buckets", "heads")),
        "attn.q": TensorName("attention.attn.q", None, ("q", "hidden"), True),
        "attn.k": TensorName("attention.attn.k", None, ("kv", "hidden"), True),
        "attn.v": TensorName("attention.attn.v", None, ("kv", "hidden"), True),
        "attn.out": TensorName("attention.attn.o", None, ("hidden", "q"), True),
        "attn.norm": TensorName("attention.LayerNorm", None, HIDDEN, True),
        "mlp.up": TensorName("intermediate.dense", None, ("ffn", "hidden"), True),
        "mlp.down": TensorName("output.dense", None, ("hidden", "ffn"), True),
        "mlp.norm": TensorName("output.LayerNorm", None, HIDDEN, True),
    },
    layers="mpnet.encoder.layer",
).but(ignored=r"\.position_ids$|^lm_head\.|(^|\.)pooler\.")
WITH_HEAD = NAMES.but(bert_head("classifier.dense", "classifier.out_proj"))


@architecture("MPNetModel", model_type="mpnet", names=NAMES, keys=ConfigKeys(CONFIG), config=MPNetConfig)
def mpnet(g: Graph, c: MPNetConfig) -> Value:
    """A vector of the text."""
    return pooled(g, encode_tokens(g, c, distances="distances"))


@architecture("MPNetForSequenceClassification", model_type="mpnet", names=WITH_HEAD, keys=ConfigKeys(CONFIG),
              config=MPNetConfig)  # fmt: skip
def mpnet_classifier(g: Graph, c: MPNetConfig) -> Value:
    """Classes, or the score of a pair of texts."""
    return draw_classifier(g, encode_tokens(g, c, distances="distances"))


alias("MPNetForMaskedLM", of="MPNetModel", model_type="mpnet")  # its head is not read
