"""Toys of Cohere 2."""

from tests.models.case import TOKENS, Case, Conversion

KIND = "Cohere2ForCausalLM"
FULL, SLIDING = "full_attention", "sliding_attention"
CASES = {
    "cohere2": Case(KIND, {"num_hidden_layers": 4, "sliding_window": 9, **TOKENS}),
    "cohere2-biased": Case(
        KIND, {"layer_types": [FULL, SLIDING], "sliding_window": 9, "attention_bias": True, **TOKENS}, in_gguf=False
    ),
}
GGUF = Conversion(
    "cohere2",
    keys=lambda c: {
        "logit_scale": c.logit_scale,
        "attention.sliding_window": c.sliding_window,
        "rope.dimension_count": c.hidden_size // c.num_attention_heads,
        "rope.scaling.type": "none",
        "vocab_size": c.vocab_size,
    },
)
