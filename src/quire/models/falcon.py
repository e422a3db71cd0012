"""Falcon: attention and feed-forward side by side; a key head for all query heads, for a group, or for each one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ATTENTION, MLP, SLOPES, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF
from quire.models.names import Names, TensorName, parts_of
from quire.models.registry import architecture
from quire.models.values import Values

FLAGS = ("new_decoder_architecture", "multi_query", "parallel_attn", "alibi")
PARTS, HIDDEN = {"attn.q": "q", "attn.k": "kv", "attn.v": "kv"}, ("hidden",)
NAMES = Names(
    {
        "embed": TensorName("transformer.word_embeddings", "token_embd", ("vocab", "hidden")),
        "attn.norm": TensorName("input_layernorm", "attn_norm", HIDDEN, only=lambda c, _: not c.has_two_norms),
        "mlp.norm": TensorName("post_attention_layernorm", None, HIDDEN, only=lambda c, _: not c.is_parallel),
        "attn.own_norm": TensorName("ln_attn", "attn_norm_2", HIDDEN, only=lambda c, _: c.has_two_norms),
        "mlp.own_norm": TensorName("ln_mlp", "attn_norm", HIDDEN, only=lambda c, _: c.has_two_norms),
        **parts_of("self_attention.query_key_value", "attn_qkv", PARTS, groups="kv_heads"),
        "attn.out": TensorName("self_attention.dense", "attn_output", ("hidden", "q")),
        "mlp.up": TensorName("mlp.dense_h_to_4h", "ffn_up", ("ffn", "hidden")),
        "mlp.down": TensorName("mlp.dense_4h_to_h", "ffn_down", ("hidden", "ffn")),
        "norm": TensorName("transformer.ln_f", "output_norm", HIDDEN),
        "head": TensorName("lm_head", "output", ("vocab", "hidden")),
    },
    layers="transformer.h",
).marked("attn.norm", "mlp.norm", "attn.own_norm", "mlp.own_norm", "norm", biased=True)
CONFIG = LLAMA_CONFIG.override(
    reads=[*FLAGS, "num_ln_in_parallel_attn", "hidden_act"],
    ignores=["hidden_dropout"], lacks=["attention_bias", "mlp_bias", "head_dim"], biases={"bias": ATTENTION + MLP},
    fixed={"n_embed": (None,), "apply_residual_connection_post_layernorm": (None, False)},
    spelling={"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads", "hidden_act": "activation",
              "rms_norm_eps": "layer_norm_epsilon"},
    defaults={"multi_query": True, "parallel_attn": True, "hidden_act": "gelu", "rms_norm_eps": 1e-5,
              "max_position_embeddings": 2048, "tie_word_embeddings": True, "eos_token_id": 11},
)  # fmt: skip
GGUF = LLAMA_GGUF.override(
    tensors={"has_two_norms": "blk.0.attn_norm_2.weight"}, defaults={"hidden_act": "gelu", "parallel_attn": True},
    spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"},
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconConfig(ModelConfig):
    """With its variants. GGUF has those with blocks side by side and rope."""

    has_two_norms: bool
    is_parallel: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        is_new, is_shared, is_parallel, is_alibi = (values.flag(name) for name in FLAGS)
        base["alibi"] = base["head_dim"] ** -0.5 if is_alibi else 0.0
        if not is_new and not is_gguf:
            base["num_kv_heads"] = 1 if is_shared else base["num_heads"]
        has_two = values.flag("has_two_norms") or (is_new and values.size("num_ln_in_parallel_attn", 2) == 2)
        return cls(**base, has_two_norms=has_two, is_parallel=is_parallel or is_new)


@architecture("FalconForCausalLM", model_type="falcon", gguf="falcon", names=NAMES, keys=ConfigKeys(CONFIG, GGUF),
              config=FalconConfig)  # fmt: skip
def falcon(g: Graph, c: FalconConfig) -> Value:
    """The feed-forward block reads the same norm as attention, one of its own, or one of what attention gave."""
    x, slopes = g.embed("embed"), SLOPES if c.alibi else None
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.own_norm" if c.has_two_norms else "attn.norm"], eps=c.norm_eps)
        attended = g.add(x, attend(g, c, layer, h, rotates=not c.alibi, slopes=slopes))
        if c.has_two_norms:
            h = g.layer_norm(x, layer["mlp.own_norm"], eps=c.norm_eps)
        elif not c.is_parallel:
            h = g.layer_norm(attended, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(attended, mlp(g, layer, h, c.activation))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
