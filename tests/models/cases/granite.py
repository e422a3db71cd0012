"""Toys of Granite. GGUF has no key for the size of its heads."""

from tests.models.case import TOKENS, Case, Conversion, pair_heads

KIND = "GraniteForCausalLM"
FACTORS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
CASES = {
    "granite": Case(KIND, {**FACTORS, **TOKENS}),
    "granite-biased": Case(KIND, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, **TOKENS}),
}
GGUF = Conversion(
    "granite",
    keys=lambda c: {
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.scale": c.attention_multiplier,
        "embedding_scale": c.embedding_multiplier,
        "residual_scale": c.residual_multiplier,
        "logit_scale": c.logits_scaling,
    },
    tensor=pair_heads,
)
