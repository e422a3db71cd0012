"""Jina embeddings v3, without its adapters for tasks: BERT with rope."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import mlp
from quire.models.encoder import HIDDEN, EncoderConfig, pooled
from quire.models.keys import ConfigKeys
from quire.models.names import Names, TensorName, parts_of
from quire.models.registry import architecture
from quire.models.rotary_bert import NOT_READ, QKV_ROWS, ROTARY_CONFIG, embeddings_of, encode_rotary

QKV_NAMES = parts_of("mixer.Wqkv", "attn_qkv", QKV_ROWS)
NAMES = (
    Names(
        {
            **embeddings_of("emb_ln"),
            **QKV_NAMES,
            "attn.out": TensorName("mixer.out_proj", None, ("hidden", "q"), True),
            "attn.norm": TensorName("norm1", None, HIDDEN, True),
            "mlp.up": TensorName("mlp.fc1", None, ("ffn", "hidden"), True),
            "mlp.down": TensorName("mlp.fc2", None, ("hidden", "ffn"), True),
            "mlp.norm": TensorName("norm2", None, HIDDEN, True),
        },
        layers="encoder.layers",
    )
    .marked(*QKV_NAMES, biased=True)
    .but(ignored=NOT_READ)
)
CONFIG = ROTARY_CONFIG.override(
    defaults={"rope_theta": 20000.0, "type_vocab_size": 1, "pad_token_id": 1, "rms_norm_eps": 1e-5}
)


@architecture("JinaEmbeddingsV3Model", model_type="jina_embeddings_v3", names=NAMES, keys=ConfigKeys(CONFIG),
              config=EncoderConfig)  # fmt: skip
def jina_embeddings_v3(g: Graph, c: EncoderConfig) -> Value:
    """A vector of the text."""
    return pooled(g, encode_rotary(g, c, lambda layer, h: mlp(g, layer, h, c.activation)))
