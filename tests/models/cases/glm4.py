"""Toys of GLM-4."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "Glm4ForCausalLM"
CASES = {
    "glm4": Case(KIND, {"head_dim": 16, "attention_bias": False, **TOKENS}),
    "glm4-biased": Case(KIND, {"head_dim": 8, **TOKENS}),
}
GGUF = Conversion(
    "glm4",
    keys=lambda c: {"rope.dimension_count": int(c.head_dim * c.rope_parameters["partial_rotary_factor"])},
)
