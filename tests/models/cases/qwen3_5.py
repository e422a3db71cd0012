"""Toys of Qwen3.5. In GGUF files the heads of values are not in groups: head n has key head n modulo their number."""

import numpy as np

from tests.models.case import Case, Config, Conversion, Keys

KIND = "Qwen3_5ForCausalLM"
FULL, LINEAR = "full_attention", "linear_attention"
HEADS = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
CASES = {
    "qwen3_5": Case(KIND, {**HEADS, "num_hidden_layers": 2, "layer_types": [LINEAR, FULL]}),
    "qwen3_5-biased": Case(
        KIND,
        {**HEADS, "num_hidden_layers": 4, "attention_bias": True, "linear_num_value_heads": 2,
         "tie_word_embeddings": True, "linear_conv_kernel_dim": 3},
    ),
}  # fmt: skip


def delta_keys(c: Config) -> Keys:
    """The keys of the delta rule."""
    parameters = c.rope_parameters
    return {
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "ssm.state_size": c.linear_key_head_dim,
        "ssm.group_count": c.linear_num_key_heads,
        "ssm.time_step_rank": c.linear_num_value_heads,
        "ssm.inner_size": c.linear_num_value_heads * c.linear_value_head_dim,
        "rope.dimension_count": int(c.head_dim * parameters["partial_rotary_factor"]),
    }


def tiled_keys(c: Config) -> Keys:
    """With sections for images, and a list of the layers with the delta rule where they are not three of four."""
    is_recurrent = [kind == LINEAR for kind in c.layer_types]
    is_listed = is_recurrent != [bool((i + 1) % 4) for i in range(len(is_recurrent))]
    lists = {"attention.recurrent_layers": is_recurrent} if is_listed else {"full_attention_interval": 4}
    return {**delta_keys(c), "rope.dimension_sections": [11, 11, 10, 0], **lists}


def delta_tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | dict[str, np.ndarray]:
    """Norms with 1 added, rates as -exp, kernels as matrices."""
    if name.endswith("A_log"):
        return -np.exp(array)
    if name.endswith("dt_bias"):
        return {f"{name.removesuffix('dt_bias')}dt_proj.bias": array}
    if name.endswith("conv1d.weight"):
        return array[:, 0]
    return array + 1 if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight") else array


def _tile(array: np.ndarray, c: Config, axis: int = 0) -> np.ndarray:
    """Heads of values, grouped by key heads, in the order of the first of each group, the second of each, …"""
    keys, each = c.linear_num_key_heads, c.linear_num_value_heads // c.linear_num_key_heads
    moved = np.moveaxis(array, axis, 0)
    tiled = moved.reshape(keys, each, -1, *moved.shape[1:]).swapaxes(0, 1).reshape(moved.shape)
    return np.moveaxis(tiled, 0, axis)


def tiled_tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | dict[str, np.ndarray]:
    """Heads of values are reordered in all tensors of the delta rule."""
    word = name.partition("linear_attn.")[2]
    if word.startswith(("in_proj_qkv", "conv1d")):
        ends = 2 * c.linear_num_key_heads * c.linear_key_head_dim
        array = np.concatenate([array[:ends], _tile(array[ends:], c)])
    elif word and not word.startswith("norm"):
        array = _tile(array, c, axis=1 if word.startswith("out_proj") else 0)
    return delta_tensor(name, array, c)


GGUF = Conversion("qwen35", keys=tiled_keys, tensor=tiled_tensor)
