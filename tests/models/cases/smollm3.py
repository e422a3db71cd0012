"""Toys of SmolLM3. GGUF has no key for its layers without rope: they are every fourth."""

from tests.models.case import TOKENS, Case, Conversion, pair_heads

KIND = "SmolLM3ForCausalLM"
WINDOW = {"use_sliding_window": True, "sliding_window": 9, "no_rope_layer_interval": 2}
CASES = {
    "smollm3": Case(KIND, {"num_hidden_layers": 4, **TOKENS}),
    "smollm3-window": Case(KIND, {"tie_word_embeddings": False, **WINDOW, **TOKENS}, in_gguf=False),
    "smollm3-listed": Case(
        KIND, {"no_rope_layers": [0, 1], "attention_bias": True, "mlp_bias": True, **TOKENS}, in_gguf=False
    ),
}
GGUF = Conversion("smollm3", tensor=pair_heads)
