"""Toys of Mamba."""

import numpy as np

from tests.models.case import TOKENS, Case, Config, Conversion, Keys
from tests.models.cases.mamba2 import bare_keys

KIND = "MambaForCausalLM"
SIZES = {"state_size": 8, "intermediate_size": 96, "time_step_rank": 5, "tie_word_embeddings": False, **TOKENS}
CASES = {
    "mamba": Case(KIND, SIZES),
    "mamba-biased": Case(
        KIND,
        {**SIZES, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "tie_word_embeddings": True,
         "time_step_rank": "auto"},
        max_tokens=300,
    ),
}  # fmt: skip


def mamba_keys(c: Config) -> Keys:
    """The keys of a model of mixers."""
    return {
        **bare_keys(c),
        "ssm.inner_size": c.intermediate_size,
        "ssm.time_step_rank": c.time_step_rank,
        "ssm.dt_b_c_rms": False,
    }


def mamba_tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray:
    """Rates instead of their logarithms."""
    if name.endswith("conv1d.weight"):
        return array[:, 0]
    return -np.exp(array) if name.endswith("A_log") else array


GGUF = Conversion("mamba", keys=mamba_keys, tensor=mamba_tensor)
