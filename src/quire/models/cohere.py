"""Cohere (Command R): attention and feed-forward side by side behind one norm, rope in pairs, scaled logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from quire.graph.graph import Graph, Value
from quire.models.blocks import attend, gated_mlp
from quire.models.config import ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import Stored, TensorName
from quire.models.registry import architecture
from quire.models.values import Values


def _norms_heads(c: CohereConfig, layer: int) -> bool:
    return c.norms_heads


def _head_norm(size: str, heads: str) -> TensorName:
    """A weight for every number of every head."""
    word, shape = size[0], (heads, "head_dim")
    stored = (Stored(f"self_attn.{word}_norm", shape=shape), Stored(f"attn_{word}_norm", shape=shape))
    return TensorName(*stored, (size,), only=_norms_heads)


COHERE_NAMES = LLAMA_NAMES.but(
    {
        "mlp.norm": None,
        "attn.q_norm": _head_norm("q", "heads"),
        "attn.k_norm": _head_norm("kv", "kv_heads"),
    }
)
COHERE_CONFIG = LLAMA_CONFIG.override(
    reads=["logit_scale", "use_qk_norm"],
    ignores=["mlp_bias"],
    spelling={"rms_norm_eps": "layer_norm_eps"},
    defaults={"rms_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": True, "rope_theta": 500000.0},
)
COHERE_GGUF = LLAMA_GGUF.override(
    reads=["logit_scale"],
    spelling={"attention.layer_norm_rms_epsilon": "attention.layer_norm_epsilon"},
    tensors={"use_qk_norm": "blk.0.attn_q_norm.weight"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereConfig(ModelConfig):
    """With the scale of its logits."""

    logit_scale: float
    norms_heads: bool

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        return cls(**base, logit_scale=values.number("logit_scale"), norms_heads=values.flag("use_qk_norm"))


@architecture(
    "CohereForCausalLM",
    model_type="cohere",
    gguf="command-r",
    names=COHERE_NAMES,
    keys=ConfigKeys(COHERE_CONFIG, COHERE_GGUF),
    config=CohereConfig,
)
def cohere(g: Graph, c: CohereConfig) -> Value:
    """Both blocks read the same normed value."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        h = g.layer_norm(x, layer["attn.norm"], eps=c.norm_eps)
        attended = attend(g, c, layer, h, head_norm="layer" if c.norms_heads else None, interleaved=True)
        x = g.add(g.add(x, attended), gated_mlp(g, layer, h, "silu"))
    return g.logits(g.layer_norm(x, "norm", eps=c.norm_eps), "head", factor=c.logit_scale)
