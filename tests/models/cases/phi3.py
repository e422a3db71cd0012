"""Toys of Phi-3."""

from tests.models.case import TOKENS, Case, rope

KIND = "Phi3ForCausalLM"
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 3.5, 4.5]}
LONG = {"original_max_position_embeddings": 64, **rope("longrope", **FACTORS)}
CASES = {
    "phi3": Case(KIND, {"sliding_window": 9, **TOKENS, **rope("default", partial_rotary_factor=0.5)}),
    "phi3-longrope": Case(KIND, {**TOKENS, **LONG}, min_tokens=65),
}
GGUF = None
