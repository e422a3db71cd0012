"""Toys of GLM."""

from tests.models.case import TOKENS, Case, Conversion, rope

KIND = "GlmForCausalLM"
CASES = {
    "glm": Case(KIND, {"head_dim": 8, **TOKENS}),
    "glm-unbiased": Case(
        KIND, {"head_dim": 16, "attention_bias": False, **rope("default", partial_rotary_factor=0.25), **TOKENS},
        in_gguf=False,
    ),
}  # fmt: skip
GGUF = Conversion(
    "chatglm",
    keys=lambda c: {
        "context_length": c.hidden_size,  # what the converter takes for it
        "rope.dimension_count": int(c.head_dim * c.rope_parameters["partial_rotary_factor"]),
        **dict.fromkeys(("attention.key_length", "attention.value_length")),
    },
)
