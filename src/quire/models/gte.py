"""GTE (v1.5 and multilingual): BERT with rope and a gated feed-forward block."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import gated_mlp
from quire.models.encoder import HIDDEN, EncoderConfig, pooled
from quire.models.keys import ConfigKeys
from quire.models.names import Names, TensorName, parts_of
from quire.models.registry import architecture
from quire.models.rotary_bert import NOT_READ, QKV_ROWS, ROTARY_CONFIG, embeddings_of, encode_rotary

QKV_NAMES = parts_of("attention.qkv_proj", "attn_qkv", QKV_ROWS)
NAMES = (
    Names(
        {
            **embeddings_of("embeddings.LayerNorm"),
            **QKV_NAMES,
            "attn.out": TensorName("attention.o_proj", None, ("hidden", "q"), True),
            "attn.norm": TensorName("attn_ln", None, HIDDEN, True),
            **parts_of("mlp.up_gate_proj", "ffn_up", {"mlp.up": "ffn", "mlp.gate": "ffn"}),
            "mlp.down": TensorName("mlp.down_proj", None, ("hidden", "ffn"), True),
            "mlp.norm": TensorName("mlp_ln", None, HIDDEN, True),
        },
        layers="encoder.layer",
    )
    .marked(*QKV_NAMES, biased=True)
    .but(ignored=NOT_READ)
)
CONFIG = ROTARY_CONFIG.override(defaults={"rope_theta": 160000.0, "type_vocab_size": 1, "pad_token_id": 1})


@architecture("GteModel", model_type="gte", names=NAMES, keys=ConfigKeys(CONFIG), config=EncoderConfig)
def gte(g: Graph, c: EncoderConfig) -> Value:
    """A vector of the text."""
    return pooled(g, encode_rotary(g, c, lambda layer, h: gated_mlp(g, layer, h, c.activation)))
