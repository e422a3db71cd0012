"""Gemma 2: norms before and after each block, softcaps, every other layer with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import HeadNorm, attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.gemma import GEMMA_CONFIG, gemma_norm
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_GGUF, LLAMA_NAMES
from quire.models.registry import architecture
from quire.models.values import Values

GEMMA2_NAMES = LLAMA_NAMES.but(
    {
        "attn.norm": gemma_norm("input_layernorm", "attn_norm"),
        "attn.post_norm": gemma_norm("post_attention_layernorm", "post_attention_norm"),
        "mlp.norm": gemma_norm("pre_feedforward_layernorm", "ffn_norm"),
        "mlp.post_norm": gemma_norm("post_feedforward_layernorm", "post_ffw_norm"),
        "norm": gemma_norm("model.norm", "output_norm"),
    }
)
GEMMA2_CONFIG = GEMMA_CONFIG.override(
    reads=["query_pre_attn_scalar", "sliding_window", "layer_types", "final_logit_softcapping"],
    lacks=["use_sliding_window", "max_window_layers"],
    fixed={"hidden_act": None, "hidden_activation": ("gelu_pytorch_tanh",)},
    defaults={"num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256},
)
CONFIG = GEMMA2_CONFIG.override(
    reads=["attn_logit_softcapping"],
    defaults={"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "sliding_window_pattern": 2},
)
GGUF = LLAMA_GGUF.override(
    reads=["attn_logit_softcapping", "final_logit_softcapping"],
    defaults={"attention.sliding_window": 4096, "attention.sliding_window_pattern": 2},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(ModelConfig):
    """With its caps and the scale of its queries."""

    WIDE: ClassVar[int] = (
        46  # layers of the size whose GGUF files scale queries by hidden / heads, without a key for it
    )

    query_scale: float
    attention_cap: float | None
    final_cap: float | None

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        attention_cap, final_cap = (values.number_or_none(f"{name}_logit_softcapping") for name in ("attn", "final"))
        is_wide = is_gguf and base["num_layers"] == cls.WIDE
        scalar = base["hidden"] / base["num_heads"] if is_wide else base["head_dim"]
        scale = values.number("query_pre_attn_scalar", scalar) ** -0.5
        return cls(**base, query_scale=scale, attention_cap=attention_cap, final_cap=final_cap)


@architecture(
    "Gemma2ForCausalLM",
    model_type="gemma2",
    gguf="gemma2",
    names=GEMMA2_NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=Gemma2Config,
)
def gemma2(g: Graph, c: Gemma2Config, *, head_norm: HeadNorm = None) -> Value:
    """Each block is normed on both sides, then added."""
    x = g.scale(g.embed("embed"), c.hidden**0.5)
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        h = attend(g, c, layer, h, head_norm=head_norm, scale=c.query_scale, softcap=c.attention_cap)
        x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
        h = gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh")
        x = g.add(x, g.rms_norm(h, layer["mlp.post_norm"], eps=c.norm_eps))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", cap=c.final_cap)
