"""Toys of Granite."""

from tests.models.case import TOKENS, Case

KIND = "GraniteForCausalLM"
FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
CASES = {"granite": Case(KIND, {**FACTORS, **TOKENS})}
GGUF = None
