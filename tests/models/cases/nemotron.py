"""Toys of Nemotron. GGUF stores 1 + w of its norms."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "NemotronForCausalLM"
CASES = {
    "nemotron": Case(KIND, {"head_dim": 8, "norm_eps": 1e-5, **TOKENS}),
    "nemotron-biased": Case(KIND, {"head_dim": 8, "attention_bias": True, "mlp_bias": True, **TOKENS}),
}
GGUF = Conversion(
    "nemotron",
    keys=lambda c: {
        "attention.layer_norm_epsilon": c.norm_eps,
        "rope.dimension_count": int(c.rope_parameters["partial_rotary_factor"] * c.hidden_size)
        // c.num_attention_heads,
        "rope.scaling.type": "none",
    },
    tensor=lambda name, array, c: array + 1 if name.endswith("norm.weight") else array,
)
