"""Toys of Gemma 2."""

from tests.models.case import Case, Conversion

KIND = "Gemma2ForCausalLM"
WINDOW = {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 7}
CASES = {
    "gemma2": Case(KIND, {**WINDOW, "query_pre_attn_scalar": 16}),
    "gemma2-scaled": Case(KIND, {**WINDOW, "query_pre_attn_scalar": 10}, in_gguf=False),
    "gemma2-plain-scores": Case(
        KIND,
        {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None, "query_pre_attn_scalar": 8},
    ),
}
GGUF = Conversion(
    "gemma2",
    keys=lambda c: {
        "attn_logit_softcapping": c.attn_logit_softcapping,
        "final_logit_softcapping": c.final_logit_softcapping,
        "attention.sliding_window": c.sliding_window,
    },
    tensor=lambda name, array, c: array + 1 if name.endswith("norm.weight") else array,
)
