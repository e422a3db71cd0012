"""Toys of OLMo."""

from tests.models.case import TOKENS, Case, Conversion, pair_heads

KIND = "OlmoForCausalLM"
CASES = {
    "olmo": Case(KIND, {**TOKENS}),
    "olmo-clipped": Case(KIND, {"clip_qkv": 0.5, "tie_word_embeddings": True, **TOKENS}),
}
GGUF = Conversion(
    "olmo",
    keys=lambda c: {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": c.clip_qkv},
    tensor=pair_heads,
)
