"""Jina v2: BERT without positions, whose attention falls with the distance (ALiBi), with a gated feed-forward block."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.bert_blocks import bert_head, bert_names, draw_classifier
from quire.models.blocks import gated_mlp
from quire.models.config import SLOPES
from quire.models.encoder import HIDDEN, attend_all, pooled, post_norm_block
from quire.models.jina_bert_config import KEYS, JinaBertConfig
from quire.models.names import Stored, TensorName, parts_of
from quire.models.registry import alias, architecture
from quire.ops import embed

NAMES = bert_names("bert").but(
    {
        "positions": None,
        **parts_of("mlp.gated_layers", "ffn_up", {"mlp.gate": "ffn", "mlp.up": "ffn"}),
        "mlp.down": TensorName("mlp.wo", "ffn_down", ("hidden", "ffn"), True),
        "mlp.norm": TensorName("mlp.layernorm", "layer_output_norm", HIDDEN, True),
    },
    layouts={"ffn_gate.weight": {"mlp.gate": Stored("ffn_gate"), "mlp.up": Stored("ffn_up")}},  # older GGUF files
)
WITH_HEAD = NAMES.but(bert_head("bert.pooler.dense", "classifier"))


def _encode(g: Graph, c: JinaBertConfig) -> Value:
    x = g.add(g.embed("embed"), g.draw(embed.embed_types, {}, {"table": "types"}))
    x = g.layer_norm(x, "embed_norm", eps=c.norm_eps)
    for layer in g.layers(c.num_layers):
        q, k, v = (g.linear(x, layer[f"attn.{word}"]) for word in "qkv")
        mixed = attend_all(g, c, (q, k, v), slopes=SLOPES)
        x = post_norm_block(g, c, layer, x, mixed, lambda h, layer=layer: gated_mlp(g, layer, h, c.activation))
    return x


@architecture("JinaBertModel", model_type="bert", gguf="jina-bert-v2", names=NAMES, keys=KEYS, config=JinaBertConfig)
def jina_bert(g: Graph, c: JinaBertConfig) -> Value:
    """A vector of the text."""
    return pooled(g, _encode(g, c))


@architecture("JinaBertForSequenceClassification", model_type="bert", names=WITH_HEAD, keys=KEYS, config=JinaBertConfig)
def jina_bert_classifier(g: Graph, c: JinaBertConfig) -> Value:
    """Classes, or the score of a pair of texts."""
    return draw_classifier(g, _encode(g, c))


alias("JinaBertForMaskedLM", of="JinaBertModel", model_type="bert")  # its head, which guesses masked words, is not read
