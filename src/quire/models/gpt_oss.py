"""gpt-oss: experts with a clamped activation, biases everywhere, sinks, every other layer with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, experts_of
from quire.models.config import ATTENTION
from quire.models.keys import ConfigKeys, RopeRules
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.moe import CONFIG_KEYS, FUSED_GATE_UP, GGUF_KEYS, TRAINING_KEYS, MoeConfig, fused_stacks
from quire.models.names import Stored, TensorName, every_second
from quire.models.registry import architecture
from quire.models.values import Values

STEMS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
BLOCKS = ("mlp.experts.gate_up_proj_blocks", "mlp.experts.down_proj_blocks")
ROWS = (every_second(0, "expert_ffn"), every_second(1, "expert_ffn"))
BIASES = ("mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias")
NAMES = LLAMA_NAMES.but(
    {
        **dict.fromkeys(("mlp.gate", "mlp.up", "mlp.down")),
        "mlp.norm": TensorName("post_attention_layernorm", "post_attention_norm", ("hidden",)),
        "attn.sinks": TensorName(Stored("self_attn.sinks", kind=""), "attn_sinks", ("heads",)),
        "mlp.router": TensorName("mlp.router", "ffn_gate_inp", ("experts", "hidden"), biased=True),
        **fused_stacks(STEMS, ROWS, BIASES, transposed=True),  # floats: [experts, in, out]
    },
    layouts={**FUSED_GATE_UP, BLOCKS[0]: fused_stacks(BLOCKS, ROWS, BIASES)},  # MXFP4: [experts, out, in],
)
ROPE = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
CONFIG = LLAMA_CONFIG.override(
    reads=[*CONFIG_KEYS, "sliding_window", "layer_types", "swiglu_limit", "swiglu_alpha"],
    ignores=["mlp_bias", *TRAINING_KEYS],
    spelling={"num_experts": "num_local_experts"},
    synonyms={"num_experts": "num_experts"},
    biases={"attention_bias": ATTENTION},
    defaults={"num_experts": 128, "num_experts_per_tok": 4, "num_key_value_heads": 8, "head_dim": 64,
              "rms_norm_eps": 1e-5, "sliding_window": 128, "sliding_window_pattern": 2, "rope_theta": 150000.0,
              "rope_parameters": ROPE, "attention_bias": True, "swiglu_limit": 7.0, "swiglu_alpha": 1.702},
)  # fmt: skip
GGUF = LLAMA_GGUF.override(
    reads=GGUF_KEYS,
    defaults={"attention.sliding_window_pattern": 2, "swiglu_limit": 7.0, "swiglu_alpha": 1.702},
    rope=RopeRules(truncates=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(MoeConfig):
    """With the numbers of its activation."""

    limit: float
    alpha: float

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        base |= {"limit": values.number("swiglu_limit"), "alpha": values.number("swiglu_alpha")}
        return super(GptOssConfig, cls).read(base, values, is_gguf)


@architecture(
    "GptOssForCausalLM",
    model_type="gpt_oss",
    gguf="gpt-oss",
    names=NAMES,
    keys=ConfigKeys(CONFIG, GGUF),
    config=GptOssConfig,
)
def gpt_oss(g: Graph, c: GptOssConfig) -> Value:
    """Pre-norm decoder; experts are chosen by their logits, and weighted by the softmax of the chosen ones."""
    activation = {"kind": "silu", "limit": c.limit, "alpha": c.alpha, "shift": 1.0}
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps)
        x = g.add(x, attend(g, c, layer, h, sinks=layer["attn.sinks"]))
        h = g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps)
        x = g.add(x, experts_of(g, c, layer, h, activation, scores_chosen=True))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
