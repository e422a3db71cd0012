"""ModernBERT: an encoder with rope, norms before each block, a gated feed-forward block, and mostly local layers."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import gated_mlp, rotate
from quire.models.encoder import HIDDEN, attend_all, classified, pooled
from quire.models.keys import ConfigKeys
from quire.models.modernbert_config import CONFIG, GGUF, ModernBertConfig
from quire.models.names import Names, TensorName, parts_of
from quire.models.registry import alias, architecture
from quire.models.rope import SLIDING
from quire.ops import pool

NAMES = Names(
    {
        "embed": TensorName("model.embeddings.tok_embeddings", "token_embd", ("vocab", "hidden")),
        "embed_norm": TensorName("model.embeddings.norm", "token_embd_norm", HIDDEN),
        "attn.norm": TensorName("attn_norm", "attn_norm", HIDDEN, only=lambda c, layer: layer > 0),
        **parts_of("attn.Wqkv", "attn_qkv", {"attn.q": "q", "attn.k": "kv", "attn.v": "kv"}),
        "attn.out": TensorName("attn.Wo", "attn_output", ("hidden", "q")),
        "mlp.norm": TensorName("mlp_norm", "ffn_norm", HIDDEN),
        **parts_of("mlp.Wi", "ffn_up", {"mlp.gate": "ffn", "mlp.up": "ffn"}),
        "mlp.down": TensorName("mlp.Wo", "ffn_down", ("hidden", "ffn")),
        "norm": TensorName("model.final_norm", "output_norm", HIDDEN),
    }
).but(ignored=r"^head\.|^decoder\.")
WITH_HEAD = NAMES.but(
    {
        "pooler": TensorName("head.dense", "cls", ("hidden", "hidden")),
        "pooler_norm": TensorName("head.norm", "cls.norm", HIDDEN),
        "score": TensorName("classifier", "cls.output", ("labels", "hidden"), True),
    },
    renamed={name: name for name in ("head.dense.weight", "head.dense.bias", "head.norm.weight", "classifier.bias")},
)
KEYS = ConfigKeys(CONFIG, GGUF)


def _encode(g: Graph, c: ModernBertConfig) -> Value:
    x = g.layer_norm(g.embed("embed"), "embed_norm", eps=c.norm_eps)
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps) if layer.index else x
        q, k, v = (g.linear(h, layer[f"attn.{word}"]) for word in "qkv")
        window = c.half_window if c.layer_types[layer.index] == SLIDING else None
        mixed = attend_all(g, c, (rotate(g, c, layer, q), rotate(g, c, layer, k), v), window=window)
        x = g.add(x, g.linear(mixed, layer["attn.out"]))
        x = g.add(x, gated_mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), c.activation))
    return g.layer_norm(x, "norm", eps=c.norm_eps)


@architecture("ModernBertModel", model_type="modernbert", gguf="modern-bert", names=NAMES, keys=KEYS,
              config=ModernBertConfig)  # fmt: skip
def modernbert(g: Graph, c: ModernBertConfig) -> Value:
    """A vector of the text."""
    return pooled(g, _encode(g, c))


@architecture("ModernBertForSequenceClassification", model_type="modernbert", names=WITH_HEAD, keys=KEYS,
              config=ModernBertConfig)  # fmt: skip
def modernbert_classifier(g: Graph, c: ModernBertConfig) -> Value:
    """Classes, or the score of a pair of texts."""
    first = g.activation(g.linear(g.draw(pool.pool, {"x": _encode(g, c)}, {}), "pooler"), c.classifier_activation)
    return classified(g, g.layer_norm(first, "pooler_norm", eps=c.norm_eps))


alias("ModernBertForMaskedLM", of="ModernBertModel", model_type="modernbert")  # its head is not read
