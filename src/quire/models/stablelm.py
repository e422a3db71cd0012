"""StableLM: Llama with layer norms, partial rope, and in its 12B blocks side by side and a norm for every head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import QKV, ModelConfig
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import Stored, TensorName
from quire.models.registry import architecture
from quire.models.values import Values


def _head_norm(size: str, heads: str) -> TensorName:
    """One norm for each head; safetensors store them one by one."""
    word, shape = size[0], (heads, "head_dim")
    stored = (Stored(f"self_attn.{word}_layernorm.norms", shape=shape), Stored(f"attn_{word}_norm", shape=shape))
    return TensorName(*stored, (size,), only=lambda c, layer: c.norms_heads)


PARTIAL = RopeRules(is_partial=True)
NAMES = (
    LLAMA_NAMES.marked("attn.norm", "mlp.norm", "norm", biased=True)
    .marked("mlp.norm", only=lambda c, layer: not c.is_parallel)
    .but(
        {"attn.q_norm": _head_norm("q", "heads"), "attn.k_norm": _head_norm("kv", "kv_heads")},
        stacked=frozenset({"_layernorm.norms.*"}),
    )
)
CONFIG = LLAMA_CONFIG.override(
    reads=["use_parallel_residual", "qk_layernorm"],
    ignores=["attention_bias", "mlp_bias", "hidden_dropout"],
    biases={"use_qkv_bias": QKV},
    spelling={"rms_norm_eps": "layer_norm_eps"},
    defaults={"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "num_key_value_heads": 32, "eos_token_id": 0},
    rope=PARTIAL,
)
GGUF = LLAMA_GGUF.override(
    ignores=["use_parallel_residual"],  # the first files have true for all models
    tensors={"has_mlp_norm": "blk.0.ffn_norm.weight", "qk_layernorm": "blk.0.attn_q_norm.weight"},
    spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"},
    rope=PARTIAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StableLmConfig(ModelConfig):
    """With its two switches."""

    is_parallel: bool
    norms_heads: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        is_parallel = not values.flag("has_mlp_norm") if is_gguf else values.flag("use_parallel_residual")
        return cls(**base, is_parallel=is_parallel, norms_heads=values.flag("qk_layernorm"))


@architecture("StableLmForCausalLM", model_type="stablelm", gguf="stablelm", names=NAMES, keys=ConfigKeys(CONFIG, GGUF),
              config=StableLmConfig)  # fmt: skip
def stablelm(g: Graph, c: StableLmConfig) -> Value:
    """Pre-norm decoder, whose blocks may read the same normed value."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, head_norm="layer" if c.norms_heads else None))
        h = h if c.is_parallel else g.layer_norm(x, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(x, gated_mlp(g, layer, h, "silu"))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head")
