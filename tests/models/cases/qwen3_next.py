"""Toys of Qwen3-Next. GGUF has no key for weights that are not renormalized, nor for dense layers."""

import numpy as np

from tests.models.case import EXPERTS, Arrays, Case, Config, Conversion, Keys, expert_keys, split_experts
from tests.models.cases.qwen3_5 import FULL, HEADS, LINEAR, delta_keys, delta_tensor

KIND = "Qwen3NextForCausalLM"
SHARED = {**HEADS, **EXPERTS, "shared_expert_intermediate_size": 56}
DENSE = {"decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": False, "attention_bias": True}
CASES = {
    "qwen3_next": Case(KIND, {**SHARED, "num_hidden_layers": 2, "layer_types": [LINEAR, FULL]}),
    "qwen3_next-dense": Case(KIND, {**SHARED, **DENSE, "num_hidden_layers": 4}, in_gguf=False),
}


def shared_keys(c: Config) -> Keys:
    """The keys of experts."""
    return {**expert_keys(c), "expert_shared_feed_forward_length": c.shared_expert_intermediate_size}


def shared_tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays | None:
    """The gate of the shared expert is a vector."""
    return array[0] if name.endswith("shared_expert_gate.weight") else None


def _keys(c: Config) -> Keys:
    return {**delta_keys(c), **shared_keys(c), "full_attention_interval": 2}


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    if name.endswith("in_proj_qkvz.weight"):
        keys, each = c.linear_key_head_dim, c.linear_num_value_heads // c.linear_num_key_heads * c.linear_value_head_dim
        heads = array.reshape(c.linear_num_key_heads, -1, array.shape[-1])
        parts = [part.reshape(-1, array.shape[-1]) for part in np.split(heads, np.cumsum([keys, keys, each]), axis=1)]
        stem = name.removesuffix("in_proj_qkvz.weight")
        return {f"{stem}in_proj_qkv.weight": np.concatenate(parts[:3]), f"{stem}in_proj_z.weight": parts[3]}
    found = shared_tensor(name, array, c)
    made = delta_tensor(name, array, c) if found is None else found
    return split_experts(name, made, c) if isinstance(made, np.ndarray) else made


GGUF = Conversion("qwen3next", keys=_keys, tensor=_tensor)
