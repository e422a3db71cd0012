"""nomic-bert: BERT with rope and a gated feed-forward block, without biases."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import gated_mlp
from quire.models.encoder import ENCODER_GGUF, HIDDEN, EncoderConfig, pooled
from quire.models.keys import ConfigKeys
from quire.models.names import Names, TensorName, parts_of
from quire.models.registry import architecture
from quire.models.rotary_bert import NOT_READ, QKV_ROWS, ROTARY_CONFIG, embeddings_of, encode_rotary

NAMES = Names(
    {
        **embeddings_of("emb_ln"),
        **parts_of("attn.Wqkv", "attn_qkv", QKV_ROWS),
        "attn.out": TensorName("attn.out_proj", "attn_output", ("hidden", "q")),
        "attn.norm": TensorName("norm1", "attn_output_norm", HIDDEN, True),
        "mlp.gate": TensorName("mlp.fc12", "ffn_gate", ("ffn", "hidden")),
        "mlp.up": TensorName("mlp.fc11", "ffn_up", ("ffn", "hidden")),
        "mlp.down": TensorName("mlp.fc2", "ffn_down", ("hidden", "ffn")),
        "mlp.norm": TensorName("norm2", "layer_output_norm", HIDDEN, True),
    },
    layers="encoder.layers",
).but(ignored=NOT_READ)
CONFIG = ROTARY_CONFIG.override(defaults={"rope_theta": 1000.0, "hidden_act": "silu"})
GGUF = ENCODER_GGUF.override(
    reads=["rope.freq_base"], ignores=["rope.dimension_count"], defaults={"hidden_act": "silu"}
)


@architecture("NomicBertModel", model_type="nomic_bert", gguf="nomic-bert", names=NAMES,
              keys=ConfigKeys(CONFIG, GGUF), config=EncoderConfig)  # fmt: skip
def nomic_bert(g: Graph, c: EncoderConfig) -> Value:
    """A vector of the text."""
    return pooled(g, encode_rotary(g, c, lambda layer, h: gated_mlp(g, layer, h, c.activation)))
