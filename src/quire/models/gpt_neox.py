"""GPT-NeoX and Pythia: layer norms, biases, partial rope, q, k and v of each head side by side in one matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ATTENTION, QKV, ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import TensorName, parts_of
from quire.models.registry import architecture
from quire.models.values import Values

PARTIAL = RopeRules(is_partial=True)
NAMES = LLAMA_NAMES.but(
    {
        "embed": TensorName("gpt_neox.embed_in", "token_embd", ("vocab", "hidden")),
        **parts_of("attention.query_key_value", "attn_qkv", dict.fromkeys(QKV, "q"), groups="heads"),
        "attn.out": TensorName("attention.dense", "attn_output", ("hidden", "q")),
        "mlp.gate": None,
        "mlp.up": TensorName("mlp.dense_h_to_4h", "ffn_up", ("ffn", "hidden")),
        "mlp.down": TensorName("mlp.dense_4h_to_h", "ffn_down", ("hidden", "ffn")),
        "norm": TensorName("gpt_neox.final_layer_norm", "output_norm", ("hidden",)),
    },
    layers="gpt_neox.layers",
    renamed={"embed_out.weight": "lm_head.weight"},
    ignored=r"\.attention\.(masked_)?bias$",
).marked("attn.norm", "mlp.norm", "mlp.up", "mlp.down", "norm", biased=True)
CONFIG = LLAMA_CONFIG.override(
    reads=["use_parallel_residual", "hidden_act"],
    ignores=["mlp_bias", "hidden_dropout", "classifier_dropout", "is_decoder"],
    lacks=["num_key_value_heads", "head_dim"],
    biases={"attention_bias": ATTENTION},
    spelling={"rms_norm_eps": "layer_norm_eps", "partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
    defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "hidden_act": "gelu", "attention_bias": True,
              "use_parallel_residual": True, "eos_token_id": 2},
    rope=PARTIAL,
)  # fmt: skip
GGUF = LLAMA_GGUF.override(
    reads=["use_parallel_residual"],
    spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"},
    defaults={"hidden_act": "gelu", "use_parallel_residual": True},
    rope=PARTIAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptNeoXConfig(ModelConfig):
    """With the order of its blocks."""

    is_parallel: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        if base["num_kv_heads"] != base["num_heads"]:
            raise values.refusal("attention.head_count_kv", f"{base['num_heads']}, the number of heads")
        return cls(**base, is_parallel=values.flag("use_parallel_residual"))


@architecture("GPTNeoXForCausalLM", model_type="gpt_neox", gguf="gptneox", names=NAMES, keys=ConfigKeys(CONFIG, GGUF),
              config=GptNeoXConfig)  # fmt: skip
def gpt_neox(g: Graph, c: GptNeoXConfig) -> Value:
    """Pre-norm decoder, whose blocks may read the same residual stream, each through a norm of its own."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        attended = g.add(x, attend(g, c, layer, g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)))
        h = g.layer_norm(x if c.is_parallel else attended, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(attended, mlp(g, layer, h, c.activation))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
