"""Toys of Helium."""

from tests.models.case import TOKENS, Case

KIND = "HeliumForCausalLM"
CASES = {
    "helium": Case(KIND, {"head_dim": 8, **TOKENS}),
    "helium-biased": Case(KIND, {"head_dim": 8, "attention_bias": True, "mlp_bias": True, **TOKENS}),
}
GGUF = None
