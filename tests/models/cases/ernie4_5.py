"""Toys of Ernie 4.5."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "Ernie4_5ForCausalLM"
CASES = {
    "ernie4_5": Case(KIND, {"head_dim": 10, **TOKENS}),
    "ernie4_5-biased": Case(KIND, {"head_dim": 8, "use_bias": True, "tie_word_embeddings": False, **TOKENS}),
}
GGUF = Conversion("ernie4_5")
