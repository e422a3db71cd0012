"""Llama, and all that is Llama with other numbers: SmolLM2, Yi, TinyLlama, …"""

from __future__ import annotations

from typing import Any

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ATTENTION, KEY_LENGTH, MLP, ModelConfig
from quire.models.keys import BASE_HARMLESS, FOREIGN, ConfigKeys, KeySet
from quire.models.names import Names, Stored, TensorName, pairs_to_halves
from quire.models.registry import architecture

LLAMA_NAMES = Names(
    {
        "embed": TensorName("model.embed_tokens", "token_embd", ("vocab", "hidden")),
        "attn.norm": TensorName("input_layernorm", "attn_norm", ("hidden",)),
        "attn.q": TensorName("self_attn.q_proj", "attn_q", ("q", "hidden")),
        "attn.k": TensorName("self_attn.k_proj", "attn_k", ("kv", "hidden")),
        "attn.v": TensorName("self_attn.v_proj", "attn_v", ("kv", "hidden")),
        "attn.out": TensorName("self_attn.o_proj", "attn_output", ("hidden", "q")),
        "mlp.norm": TensorName("post_attention_layernorm", "ffn_norm", ("hidden",)),
        "mlp.gate": TensorName("mlp.gate_proj", "ffn_gate", ("ffn", "hidden")),
        "mlp.up": TensorName("mlp.up_proj", "ffn_up", ("ffn", "hidden")),
        "mlp.down": TensorName("mlp.down_proj", "ffn_down", ("hidden", "ffn")),
        "norm": TensorName("model.norm", "output_norm", ("hidden",)),
        "head": TensorName("lm_head", "output", ("vocab", "hidden")),
    }
)
# GGUF files of `llama` have the rows of q and k in the order of rope in pairs.
PAIRED_NAMES = LLAMA_NAMES.marked("attn.q", gguf=Stored("attn_q", pairs_to_halves("heads", "q"))).marked(
    "attn.k", gguf=Stored("attn_k", pairs_to_halves("kv_heads", "kv"))
)
ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor",
             "original_max_position_embeddings")  # fmt: skip
LLAMA_CONFIG = KeySet(
    read=frozenset({
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings",
        "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "initializer_range",
        "attention_bias", "mlp_bias", "tie_word_embeddings", "eos_token_id", "quantization_config", *ROPE_KEYS,
    }),
    harmless=BASE_HARMLESS | {
        "attention_dropout", "pretraining_tp",  # training; how matrices were cut, the sums are the same
        "layer_types",  # config.py compares them with the windows
        "sliding_window", "use_sliding_window", "max_window_layers",  # Llama has no window
    },
    fixed={"hidden_act": ("silu", "swish")}, foreign=FOREIGN, biases={"attention_bias": ATTENTION, "mlp_bias": MLP},
)  # fmt: skip
LLAMA_GGUF = KeySet(
    read=frozenset({
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window",
        "attention.sliding_window_pattern", "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scale_linear",
        "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
        "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }),
    harmless=frozenset({
        "vocab_size", "attention.layer_norm_epsilon",  # the table of embeddings has it too; of another kind of norm
        "pooling_type", "classifier.output_labels", "tensor_data_layout", "rope.scaling.finetuned",  # for others
    }),
    fixed={"attention.causal": (True,), "rope.scaling.yarn_ext_factor": (1.0,), "logit_scale": (0.0, 1.0)},
    is_closed=True, head_dim=KEY_LENGTH,
)  # fmt: skip
KEYS = ConfigKeys(LLAMA_CONFIG, LLAMA_GGUF)


@architecture("LlamaForCausalLM", model_type="llama", gguf="llama", names=PAIRED_NAMES, keys=KEYS)
def llama(g: Graph, c: ModelConfig, **attention: Any) -> Value:
    """Pre-norm decoder with grouped heads, rotary positions and a gated feed-forward block.

    `attention`: what `attend` takes, in architectures that differ in nothing else.
    """
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, **attention))
        h = g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(x, gated_mlp(g, layer, h, "silu"))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
