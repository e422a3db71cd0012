"""Apertus: Llama with a norm on every head and a plain feed-forward block with xIELU, whose numbers are learned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from quire.graph.graph import Graph, Value
from quire.graph.weight import Weight, computed_weight
from quire.models.blocks import attend
from quire.models.config import ATTENTION, ModelConfig
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, LLAMA_NAMES
from quire.models.names import TensorName
from quire.models.registry import architecture
from quire.models.values import Values

XIELU = ("alpha_p", "alpha_n", "beta", "eps")
NAMES = LLAMA_NAMES.but(
    {
        "attn.norm": TensorName("attention_layernorm", "attn_norm", ("hidden",)),
        "attn.q_norm": TensorName("self_attn.q_norm", "attn_q_norm", ("head_dim",)),
        "attn.k_norm": TensorName("self_attn.k_norm", "attn_k_norm", ("head_dim",)),
        "mlp.norm": TensorName("feedforward_layernorm", "ffn_norm", ("hidden",)),
        "mlp.gate": None,
        **{
            f"mlp.{name}": TensorName(f"mlp.act_fn.{name}", None, ("one",) if "alpha" in name else (), kind="")
            for name in XIELU
        },
    }
)
ROPE = {"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
CONFIG = LLAMA_CONFIG.override(
    ignores=["mlp_bias"],
    fixed={"hidden_act": ("xielu",), "qk_norm": (None, True), "post_norm": (None, False)},
    biases={"attention_bias": ATTENTION},
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 12000000.0, "rope_parameters": ROPE, "eos_token_id": 2},
)
GGUF = LLAMA_GGUF.override(reads=[f"xielu.{name}" for name in XIELU])


@dataclass(frozen=True, slots=True, kw_only=True)
class ApertusConfig(ModelConfig):
    """With the numbers of its activation."""

    xielu: tuple[tuple[float, ...], ...]  # of every layer, in the order of XIELU; () until the tensors are read

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        lists = [values.numbers_of_layers(f"xielu.{name}", base["num_layers"]) for name in XIELU] if is_gguf else []
        return cls(**base, xielu=tuple(zip(*lists, strict=True)))

    def complete(self, weights: dict[str, Weight]) -> Self:
        """Replace the stored numbers by the factors above and below 0, which are weights."""
        numbers = self.xielu or tuple(
            tuple(weights.pop(f"layers.{i}.mlp.{name}").float32().item() for name in XIELU)
            for i in range(self.num_layers)
        )
        for i, (alpha_p, alpha_n, beta, _) in enumerate(numbers):
            factors = {"positive": np.logaddexp(0, alpha_p), "negative": beta + np.logaddexp(0, alpha_n)}
            named = {f"layers.{i}.mlp.{name}": np.array([factor]) for name, factor in factors.items()}
            weights |= {name: computed_weight(name, array) for name, array in named.items()}
        return replace(self, xielu=numbers)


@architecture("ApertusForCausalLM", model_type="apertus", gguf="apertus", names=NAMES, keys=ConfigKeys(CONFIG, GGUF),
              config=ApertusConfig)  # fmt: skip
def apertus(g: Graph, c: ApertusConfig) -> Value:
    """Pre-norm decoder."""
    x = g.embed("embed")
    for layer in g.layers(c.num_layers):
        x = g.add(x, attend(g, c, layer, g.rms_norm(x, layer["attn.norm"], eps=c.norm_eps), head_norm="rms"))
        h = g.linear(g.rms_norm(x, layer["mlp.norm"], eps=c.norm_eps), layer["mlp.up"])
        _, _, beta, eps = c.xielu[layer.index]
        h = g.xielu(h, layer["mlp.positive"], layer["mlp.negative"], beta=beta, eps=eps)
        x = g.add(x, g.linear(h, layer["mlp.down"]))
    return g.logits(g.rms_norm(x, "norm", eps=c.norm_eps), "head")
