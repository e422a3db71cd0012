"""Toys of Gemma 3. Its GGUF files have the rope of layers without a window, and theta of the others."""

from tests.models.case import Case, Conversion, rope_keys

KIND = "Gemma3ForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
SIZES = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 7}
LINEAR = {
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 5000.0},
}
CASES = {
    "gemma3": Case(KIND, {**SIZES, "num_hidden_layers": 3, "layer_types": [SLIDING, FULL, SLIDING]}, in_gguf=False),
    "gemma3-linear": Case(KIND, {**SIZES, "num_hidden_layers": 6, "rope_parameters": LINEAR}),
    "gemma3-capped": Case(KIND, {**SIZES, "query_pre_attn_scalar": 10, "final_logit_softcapping": 20.0}, in_gguf=False),
    "gemma3-without-windows": Case(KIND, {**SIZES, "layer_types": [FULL, FULL]}, in_gguf=False),
}
GGUF = Conversion(
    "gemma3",
    keys=lambda c: {
        **rope_keys(c.rope_parameters[FULL]),
        "rope.freq_base_swa": c.rope_parameters[SLIDING]["rope_theta"],
        "attention.sliding_window": c.sliding_window,
    },
    tensor=lambda name, array, c: array + 1 if name.endswith("norm.weight") else array,
)
