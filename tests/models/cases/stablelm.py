"""Toys of StableLM."""

import numpy as np

from tests.models.case import TOKENS, Case, Conversion, rope

KIND = "StableLmForCausalLM"
CASES = {
    "stablelm": Case(KIND, {"use_qkv_bias": True, "layer_norm_eps": 1e-4, **TOKENS}),
    "stablelm-parallel": Case(
        KIND,
        {"use_parallel_residual": True, "qk_layernorm": True, **TOKENS, **rope("default", partial_rotary_factor=0.5)},
    ),
}


def _tensor(name, array, c):
    """The norms of a layer's heads become one tensor, with the last of them."""
    if "_layernorm.norms." not in name:
        return array
    stem, index = name.removesuffix(".weight").split(".norms.")
    parts = _PARTS.setdefault((id(c), stem), {})
    parts[int(index)] = array
    heads = c.num_attention_heads if "q_layernorm" in name else c.num_key_value_heads
    return {f"{stem}.weight": np.stack([parts[i] for i in range(heads)])} if len(parts) == heads else None


_PARTS: dict = {}
GGUF = Conversion(
    "stablelm",
    keys=lambda c: {
        "rope.dimension_count": int(
            c.rope_parameters["partial_rotary_factor"] * (c.hidden_size // c.num_attention_heads)
        ),
        "use_parallel_residual": c.use_parallel_residual,
    },
    tensor=_tensor,
)
