"""Toys of StarCoder 2. GGUF has no key for its window."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "Starcoder2ForCausalLM"
CASES = {
    "starcoder2": Case(KIND, {"norm_epsilon": 1e-4, **TOKENS}),
    "starcoder2-window": Case(
        KIND,
        {"use_bias": False, "sliding_window": 9, "tie_word_embeddings": False, "hidden_act": "gelu", **TOKENS},
        in_gguf=False,
    ),
}
GGUF = Conversion("starcoder2", keys=lambda c: {"attention.layer_norm_epsilon": c.norm_epsilon})
