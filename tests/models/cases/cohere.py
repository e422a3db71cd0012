"""Toys of Cohere."""

from tests.models.case import TOKENS, Case

KIND = "CohereForCausalLM"
CASES = {
    "cohere": Case(KIND, {**TOKENS}),
    "cohere-normed-heads": Case(KIND, {"use_qk_norm": True, "logit_scale": 0.5, **TOKENS}),
}
GGUF = None
