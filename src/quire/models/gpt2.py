"""GPT-2: learned positions, layer norms, biases everywhere, matrices stored transposed."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ModelConfig
from quire.models.keys import BASE_HARMLESS, FOREIGN, ConfigKeys, KeySet
from quire.models.names import Names, Stored, TensorName, part
from quire.models.registry import architecture

QKV = ("q", "q", "q")


def _matrix(name: str, gguf: str, *shape: str) -> TensorName:
    return TensorName(Stored(name, transposed=True), gguf, shape, biased=True)


NAMES = Names(
    {
        "embed": TensorName("transformer.wte", "token_embd", ("vocab", "hidden")),
        "positions": TensorName("transformer.wpe", "position_embd", ("positions", "hidden")),
        "attn.norm": TensorName("ln_1", "attn_norm", ("hidden",), biased=True),
        **{
            f"attn.{word}": TensorName(
                Stored("attn.c_attn", part(i, *QKV), transposed=True),
                Stored("attn_qkv", part(i, *QKV)),
                ("q", "hidden"),
                biased=True,
            )
            for i, word in enumerate("qkv")
        },
        "attn.out": _matrix("attn.c_proj", "attn_output", "hidden", "q"),
        "mlp.norm": TensorName("ln_2", "ffn_norm", ("hidden",), biased=True),
        "mlp.up": _matrix("mlp.c_fc", "ffn_up", "ffn", "hidden"),
        "mlp.down": _matrix("mlp.c_proj", "ffn_down", "hidden", "ffn"),
        "norm": TensorName("transformer.ln_f", "output_norm", ("hidden",), biased=True),
        "head": TensorName("lm_head", "output", ("vocab", "hidden")),
    },
    layers="transformer.h",
).but(ignored=r"\.attn\.(masked_)?bias$")
CONFIG = KeySet(
    read=frozenset(
        {
            *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"),
            *("num_attention_heads", "rms_norm_eps", "initializer_range", "tie_word_embeddings", "eos_token_id"),
            "quantization_config",
        }
    ),
    harmless=BASE_HARMLESS.union(
        {
            *("resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn"),
            *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
            "summary_first_dropout",
        }
    ),
    fixed={
        "activation_function": ("gelu_new",),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    foreign={key: FOREIGN[key] for key in FOREIGN if key != "activation_function"},
    defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": 50256},
    spelling={
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
    },
)
GGUF = KeySet(
    read=frozenset(
        {
            *("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"),
            "attention.layer_norm_epsilon",
        }
    ),
    harmless=frozenset({"vocab_size"}),
    is_closed=True,
)


@architecture("GPT2LMHeadModel", model_type="gpt2", gguf="gpt2", names=NAMES, keys=ConfigKeys(CONFIG, GGUF))
def gpt2(g: Graph, c: ModelConfig) -> Value:
    """Pre-norm decoder."""
    x = g.add(g.embed("embed"), g.embed_positions("positions"))
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, rotates=False))
        x = g.add(x, mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh"))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
