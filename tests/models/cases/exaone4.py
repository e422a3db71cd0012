"""Toys of EXAONE 4."""

from tests.models.case import LLAMA3, TOKENS, Case, Conversion, llama3_divisors

KIND = "Exaone4ForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
CASES = {
    "exaone4": Case(
        KIND, {"sliding_window": 9, "sliding_window_pattern": 2, "num_hidden_layers": 3, "head_dim": 8, **TOKENS}
    ),
    "exaone4-listed": Case(
        KIND,
        {"sliding_window": 11, "sliding_window_pattern": "LLG", "layer_types": [FULL, SLIDING], "head_dim": 8,
         **LLAMA3, **TOKENS},
    ),
    "exaone4-full": Case(KIND, {"sliding_window": None, "layer_types": [FULL] * 2, "head_dim": 8, **LLAMA3, **TOKENS}),
    "exaone4-no-rope": Case(KIND, {"layer_types": [FULL] * 2, "head_dim": 8, **TOKENS}),
}  # fmt: skip
GGUF = Conversion(
    "exaone4",
    keys=lambda c: {
        "attention.sliding_window": c.sliding_window,
        "attention.sliding_window_pattern": c.sliding_window and [kind == SLIDING for kind in c.layer_types],
    },
    extra=llama3_divisors,
)
