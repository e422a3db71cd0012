"""The numbers of Falcon-H1: those of its mixers, and its many factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from quire.graph.weight import Weight, computed_weight
from quire.models.config import ATTENTION, MLP
from quire.models.keys import ConfigKeys
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF
from quire.models.mamba_blocks import MAMBA2_GGUF, MAMBA2_KEYS, UNUSED_KEYS, ScanConfig
from quire.models.values import Values

FACTORS = ("embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier",
           "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier")  # fmt: skip
LISTS = {"mlp_multipliers": 2, "ssm_multipliers": 5}  # with the number of their factors
XBC = "ssm_factors"  # the weight of the factors of x, b and c
CONFIG = LLAMA_CONFIG.override(
    reads=[*MAMBA2_KEYS, *FACTORS, *LISTS, "mamba_d_ssm", "mamba_norm_before_gate", "mamba_rms_norm"],
    ignores=[*UNUSED_KEYS, "mamba_use_mlp", "attn_layer_indices", "layers_block_type"],
    defaults={
        **{"mamba_n_heads": 128, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True},
        **{
            "mamba_d_ssm": 1024,
            "mamba_norm_before_gate": True,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "eos_token_id": 2,
        },
        **dict.fromkeys(FACTORS, 1.0),
        **{key: [1.0] * count for key, count in LISTS.items()},
    },
    biases={
        **{"attention_bias": ATTENTION, "mlp_bias": MLP, "mamba_conv_bias": ("ssm.kernel",)},
        **{"mamba_proj_bias": ("ssm.z", "ssm.xbc", "ssm.dt"), "projectors_bias": ("ssm.out",)},
    },
)
# In GGUF all factors are in the weights, and the norm of mixers, where there is one, is behind the gate.
GGUF = LLAMA_GGUF.override(
    reads=MAMBA2_GGUF,
    defaults={
        **dict.fromkeys(FACTORS, 1.0),
        **{key: [1.0] * count for key, count in LISTS.items()},
        "mamba_rms_norm": True,
    },
)
KEYS = ConfigKeys(CONFIG, GGUF)


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconH1Config(ScanConfig):
    """With its factors."""

    factors: dict[str, float]
    mlp_factors: tuple[float, ...]  # of the gate and of the output
    ssm_factors: tuple[float, ...]  # of z, x, b, c and dt
    has_norm: bool  # of mixers
    norm_first: bool  # before the gate

    @classmethod
    def read(cls, base: dict[str, Any], values: Values, is_gguf: bool) -> Self:
        lists = [values.numbers(key) for key in LISTS]
        if wrong := [key for key, each in zip(LISTS, lists, strict=True) if len(each) != LISTS[key]]:
            raise values.refusal(wrong[0], f"a list of {LISTS[wrong[0]]} numbers")
        numbers = {
            "factors": {key: values.number(key) for key in FACTORS},
            "mlp_factors": lists[0],
            "ssm_factors": lists[1],
            "has_norm": values.flag("mamba_rms_norm"),
            "norm_first": values.flag("mamba_norm_before_gate"),
        }
        return super(FalconH1Config, cls).read(base | numbers, values, is_gguf)

    def complete(self, weights: dict[str, Weight]) -> Self:
        """Add the factors of x, b and c, if they are not all 1."""
        shared = self.scan.groups * self.scan.size
        columns = np.repeat(np.array(self.ssm_factors[1:4], np.float32), (self.scan.inner, shared, shared))
        if set(self.ssm_factors[1:4]) != {1.0}:
            weights[XBC] = computed_weight(XBC, columns)
        return self


def has_norm(c: FalconH1Config, layer: int) -> bool:
    """Whether a mixer has a norm, as all have or none."""
    return c.has_norm
