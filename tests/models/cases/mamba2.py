"""Toys of Mamba-2. transformers limits step sizes in prompts alone, and norms groups of heads as one."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys

KIND = "Mamba2ForCausalLM"
SIZES = {"num_heads": 6, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16, **TOKENS}
CASES = {
    "mamba2": Case(KIND, SIZES),
    "mamba2-biased": Case(
        KIND,
        {**SIZES, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "tie_word_embeddings": True,
         "time_step_limit": (0.2, 0.6)},
        max_tokens=300,
        in_gguf=False,
    ),
}  # fmt: skip


def mamba2_keys(c: Config, heads: int, dim: int, groups: int) -> Keys:
    """The keys of a mixer."""
    sizes = {"inner_size": heads * dim, "time_step_rank": heads, "group_count": groups}
    return {f"ssm.{key}": size for key, size in sizes.items()}


def bare_keys(c: Config) -> Keys:
    """The keys of a model without attention and feed-forward blocks."""
    return {
        **dict.fromkeys(("attention.head_count", "feed_forward_length"), 0),
        **dict.fromkeys(("attention.key_length", "attention.value_length")),
        "context_length": 1 << 20,
        "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
        "attention.layer_norm_epsilon": None,
        "ssm.conv_kernel": c.conv_kernel,
        "ssm.state_size": c.state_size,
    }


def mamba2_tensor(name: str, array: np.ndarray, groups: int) -> np.ndarray | Arrays:
    """Rates instead of their logarithms; shapes in which groups are an axis."""
    if name.endswith("conv1d.weight"):
        return array[:, 0]
    if name.endswith("A_log"):
        return -np.exp(array)[:, None]
    if name.endswith(".D"):
        return array[:, None]
    if name.endswith("dt_bias"):
        return {name.replace("dt_bias", "dt_proj.bias"): array}
    return array.reshape(groups, -1) if name.endswith(("mixer.norm.weight", "mamba.norm.weight")) else array


GGUF = Conversion(
    "mamba2",
    keys=lambda c: {**bare_keys(c), **mamba2_keys(c, c.num_heads, c.head_dim, c.n_groups)},
    tensor=lambda name, array, c: mamba2_tensor(name, array, c.n_groups),
)
