"""Toys of GPT-NeoX. GGUF has no key for the base of its rope nor for its activation."""

import numpy as np

from tests.models.case import TOKENS, Case, Conversion, rope

KIND = "GPTNeoXForCausalLM"
CASES = {
    "gpt_neox": Case(KIND, {"layer_norm_eps": 1e-4, **TOKENS}),
    "gpt_neox-sequential": Case(
        KIND,
        {"use_parallel_residual": False, **TOKENS, **rope("default", partial_rotary_factor=0.5)},
    ),
    "gpt_neox-unbiased": Case(
        KIND,
        {"attention_bias": False, "hidden_act": "gelu_fast", **TOKENS, **rope("default", rope_theta=500.0)},
        in_gguf=False,
    ),
}


def _tensor(name, array, c):
    """q, k and v of all heads, one after the other."""
    if "query_key_value" not in name:
        return array
    heads = array.reshape(c.num_attention_heads, 3, -1, *array.shape[1:])
    return np.concatenate([heads[:, i].reshape(-1, *array.shape[1:]) for i in range(3)])


GGUF = Conversion(
    "gptneox",
    keys=lambda c: {
        "rope.dimension_count": int(
            c.rope_parameters["partial_rotary_factor"] * (c.hidden_size // c.num_attention_heads)
        ),
        "use_parallel_residual": c.use_parallel_residual,
    },
    tensor=_tensor,
)
