"""Toys of Arcee."""

from tests.models.case import TOKENS, YARN, Case, Conversion, pair_heads

KIND = "ArceeForCausalLM"
CASES = {
    "arcee": Case(KIND, {**TOKENS}),
    "arcee-yarn": Case(KIND, {"attention_bias": True, "mlp_bias": True, **TOKENS, **YARN}),
}
GGUF = Conversion("arcee", tensor=pair_heads)
