"""RoBERTa, XLM-R and CamemBERT: BERT with positions that begin behind the padding token's. GGUF files say `bert`."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.bert_blocks import bert_head, bert_names, draw_classifier, encode_tokens
from quire.models.encoder import ENCODER_CONFIG, AfterPaddingConfig, pooled
from quire.models.keys import ConfigKeys
from quire.models.registry import alias, architecture

NAMES = bert_names("roberta")
WITH_HEAD = NAMES.but(bert_head("classifier.dense", "classifier.out_proj"))
KEYS = ConfigKeys(ENCODER_CONFIG.override(defaults={"pad_token_id": 1}))


@architecture("RobertaModel", model_type="roberta", names=NAMES, keys=KEYS, config=AfterPaddingConfig)
def roberta(g: Graph, c: AfterPaddingConfig) -> Value:
    """A vector of the text."""
    return pooled(g, encode_tokens(g, c))


@architecture("RobertaForSequenceClassification", model_type="roberta", names=WITH_HEAD, keys=KEYS,
              config=AfterPaddingConfig)  # fmt: skip
def roberta_classifier(g: Graph, c: AfterPaddingConfig) -> Value:
    """Classes, or the score of a pair of texts."""
    return draw_classifier(g, encode_tokens(g, c))


for family, kind in (("Roberta", "roberta"), ("XLMRoberta", "xlm-roberta"), ("Camembert", "camembert")):
    alias(f"{family}ForMaskedLM", of="RobertaModel", model_type=kind)  # its head is not read
    if family != "Roberta":
        alias(f"{family}Model", of="RobertaModel", model_type=kind)
        alias(f"{family}ForSequenceClassification", of="RobertaForSequenceClassification", model_type=kind)
