"""Gemma 2: norms before and after each block, softcaps, every other layer with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import FULL, SLIDING, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import Stored, TensorName
from quire.models.registry import architecture
from quire.models.values import Values

NORMS = {  # safetensors store w of 1 + w; GGUF files store the sum
    "attn.norm": ("input_layernorm", "attn_norm"),
    "attn.post_norm": ("post_attention_layernorm", "post_attention_norm"),
    "mlp.norm": ("pre_feedforward_layernorm", "ffn_norm"),
    "mlp.post_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    "norm": ("model.norm", "output_norm"),
}
NAMES = LLAMA_NAMES.but(
    {word: TensorName(Stored(name, added=1.0), gguf, ("hidden",)) for word, (name, gguf) in NORMS.items()}
)
CONFIG = LLAMA_CONFIG.override(
    reads=["query_pre_attn_scalar", "sliding_window", "layer_types"],
    ignores=["mlp_bias"],
    lacks=["use_sliding_window", "max_window_layers"],
    fixed={
        "hidden_act": None,
        "hidden_activation": ("gelu_pytorch_tanh",),
        "use_bidirectional_attention": (None, False),
    },
    defaults={"head_dim": 256, "num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256,
              "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0, "tie_word_embeddings": True,
              "eos_token_id": 1},
).override(reads=["final_logit_softcapping", "attn_logit_softcapping"])  # fmt: skip
GGUF = LLAMA_GGUF.override(reads=["attn_logit_softcapping", "final_logit_softcapping"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma2Config(ModelConfig):
    """With its caps and the scale of its queries."""

    query_scale: float
    attention_cap: float | None
    final_cap: float | None

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        caps = (values.number_or_none(f"{name}_logit_softcapping") for name in ("attn", "final"))
        attention_cap, final_cap = caps
        if is_gguf:  # the file has one window and not its pattern
            window = next(each for each in base["windows"])
            base["layer_types"] = tuple(SLIDING if i % 2 == 0 else FULL for i in range(base["num_layers"]))
            base["windows"] = tuple(window if each == SLIDING else None for each in base["layer_types"])
        scalar = base["hidden"] / base["num_heads"] if is_gguf and base["num_layers"] == 46 else base["head_dim"]
        scale = values.number("query_pre_attn_scalar", scalar) ** -0.5
        return cls(**base, query_scale=scale, attention_cap=attention_cap, final_cap=final_cap)


@architecture(
    "Gemma2ForCausalLM",
    model_type="gemma2",
    gguf="gemma2",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=Gemma2Config,
)
def gemma2(g: Graph, c: Gemma2Config) -> Value:
    """Each block is normed on both sides, then added."""
    x = g.scale(g.embed("embed"), c.hidden**0.5)
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        h = attend(g, c, layer, h, scale=c.query_scale, softcap=c.attention_cap)
        x = g.add(x, g.rms_norm(h, layer["attn.post_norm"], eps=c.norm_eps))
        h = gated_mlp(g, layer, g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), "gelu_tanh")
        x = g.add(x, g.rms_norm(h, layer["mlp.post_norm"], eps=c.norm_eps))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head", cap=c.final_cap)
