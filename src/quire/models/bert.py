"""BERT: an encoder with learned positions that norms the sum of each block."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.bert_blocks import bert_head, bert_names, draw_classifier, encode_tokens
from quire.models.encoder import ENCODER_CONFIG, ENCODER_GGUF, EncoderConfig, pooled
from quire.models.keys import ConfigKeys
from quire.models.registry import alias, architecture

NAMES = bert_names("bert")
KEYS = ConfigKeys(ENCODER_CONFIG, ENCODER_GGUF)
WITH_HEAD = NAMES.but(bert_head("bert.pooler.dense", "classifier"))


@architecture("BertModel", model_type="bert", gguf="bert", names=NAMES, keys=KEYS, config=EncoderConfig)
def bert(g: Graph, c: EncoderConfig) -> Value:
    """A vector of the text."""
    return pooled(g, encode_tokens(g, c))


@architecture("BertForSequenceClassification", model_type="bert", names=WITH_HEAD, keys=KEYS, config=EncoderConfig)
def bert_classifier(g: Graph, c: EncoderConfig) -> Value:
    """Classes, or the score of a pair of texts."""
    return draw_classifier(g, encode_tokens(g, c))


alias("BertForMaskedLM", of="BertModel", model_type="bert")  # its head, which guesses masked words, is not read
