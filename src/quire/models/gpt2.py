"""GPT-2: learned positions, layer norms, biases everywhere, matrices stored transposed."""

from __future__ import annotations

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import QKV, ModelConfig
from quire.models.keys import ConfigKeys, KeySet
from quire.models.llama import LLAMA_CONFIG, ROPE_KEYS
from quire.models.names import Names, Stored, TensorName, parts_of
from quire.models.registry import architecture


def _matrix(name: str, gguf: str, *shape: str) -> TensorName:
    return TensorName(Stored(name, transposed=True), gguf, shape)


NAMES = Names(
    {
        "embed": TensorName("transformer.wte", "token_embd", ("vocab", "hidden")),
        "positions": TensorName("transformer.wpe", "position_embd", ("positions", "hidden")),
        "attn.norm": TensorName("ln_1", "attn_norm", ("hidden",)),
        **parts_of("attn.c_attn", "attn_qkv", dict.fromkeys(QKV, "q"), transposed=True),
        "attn.out": _matrix("attn.c_proj", "attn_output", "hidden", "q"),
        "mlp.norm": TensorName("ln_2", "ffn_norm", ("hidden",)),
        "mlp.up": _matrix("mlp.c_fc", "ffn_up", "ffn", "hidden"),
        "mlp.down": _matrix("mlp.c_proj", "ffn_down", "hidden", "ffn"),
        "norm": TensorName("transformer.ln_f", "output_norm", ("hidden",)),
        "head": TensorName("lm_head", "output", ("vocab", "hidden")),
    },
    layers="transformer.h",
).but(ignored=r"\.attn\.(masked_)?bias$")
NAMES = NAMES.marked(*(word for word in NAMES.entries if word not in ("embed", "positions", "head")), biased=True)
CONFIG = LLAMA_CONFIG.override(
    ignores=["resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "summary_type", "summary_use_proj",
             "summary_activation", "summary_proj_to_labels", "summary_first_dropout"],
    lacks=[*ROPE_KEYS, "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias", "hidden_act"],
    fixed={"activation_function": ("gelu_new",), "scale_attn_weights": (True,), "add_cross_attention": (False,),
           "scale_attn_by_inverse_layer_idx": (False,)},
    biases={},
    defaults={"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": 50256},
    spelling={"hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
              "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
              "rms_norm_eps": "layer_norm_epsilon"},
)  # fmt: skip
GGUF = KeySet(
    read=frozenset({"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
                    "attention.layer_norm_epsilon"}),
    harmless=frozenset({"vocab_size"}),
    is_closed=True,
)  # fmt: skip


@architecture("GPT2LMHeadModel", model_type="gpt2", gguf="gpt2", names=NAMES, keys=ConfigKeys(CONFIG, GGUF))
def gpt2(g: Graph, c: ModelConfig) -> Value:
    """Pre-norm decoder."""
    x = g.add(g.embed("embed"), g.embed_positions("positions"))
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, rotates=False))
        x = g.add(x, mlp(g, layer, g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh"))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
