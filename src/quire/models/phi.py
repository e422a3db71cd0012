"""Phi-1 and Phi-2: attention and feed-forward side by side behind one layer norm, partial rope, biases everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import FUSED_QKV, TensorName
from quire.models.registry import architecture
from quire.models.values import Values


def _norms_heads(c: PhiConfig, layer: int) -> bool:
    return c.norms_heads


BIASED = ("attn.norm", "attn.q", "attn.k", "attn.v", "attn.out", "mlp.up", "mlp.down", "norm", "head")
NAMES = LLAMA_NAMES.but(
    {
        "attn.out": TensorName("self_attn.dense", "attn_output", ("hidden", "q")),
        "attn.q_norm": TensorName("self_attn.q_layernorm", None, ("head_dim",), biased=True, only=_norms_heads),
        "attn.k_norm": TensorName("self_attn.k_layernorm", None, ("head_dim",), biased=True, only=_norms_heads),
        "mlp.norm": None,
        "mlp.gate": None,
        "mlp.up": TensorName("mlp.fc1", "ffn_up", ("ffn", "hidden")),
        "mlp.down": TensorName("mlp.fc2", "ffn_down", ("hidden", "ffn")),
        "norm": TensorName("model.final_layernorm", "output_norm", ("hidden",)),
    },
    layouts=FUSED_QKV,
).marked(*BIASED, biased=True)
PARTIAL = RopeRules(is_partial=True)
CONFIG = LLAMA_CONFIG.override(
    reads=["qk_layernorm"],
    ignores=["attention_bias", "mlp_bias", "embd_pdrop", "resid_pdrop"],
    fixed={"hidden_act": ("gelu_new", "gelu_pytorch_tanh")},
    spelling={"rms_norm_eps": "layer_norm_eps"},
    defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "eos_token_id": 2},
    rope=PARTIAL,
)
GGUF = LLAMA_GGUF.override(spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"}, rope=PARTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhiConfig(ModelConfig):
    """With the switch of norms on heads."""

    norms_heads: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**base, norms_heads=values.flag("qk_layernorm"))


@architecture(
    "PhiForCausalLM", model_type="phi", gguf="phi2", names=NAMES, keys=ConfigKeys(CONFIG, GGUF), config=PhiConfig
)
def phi(g: Graph, c: PhiConfig) -> Value:
    """Both blocks read the same normed value."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)
        attended = attend(g, c, layer, h, head_norm="layer" if c.norms_heads else None)
        x = g.add(g.add(x, attended), mlp(g, layer, h, "gelu_tanh"))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
