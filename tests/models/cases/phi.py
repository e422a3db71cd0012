"""Toys of Phi. Its GGUF files have a feed-forward block of four times the width, and no norms of heads."""

from tests.models.case import TOKENS, Case, Conversion, rope

KIND = "PhiForCausalLM"
CASES = {
    "phi": Case(KIND, {"num_key_value_heads": 6, "intermediate_size": 192, **TOKENS}),
    "phi-normed-heads": Case(
        KIND,
        {"qk_layernorm": True, "tie_word_embeddings": True, **rope("default", partial_rotary_factor=0.25), **TOKENS},
        in_gguf=False,
    ),
}
GGUF = Conversion(
    "phi2",
    keys=lambda c: {
        "rope.freq_base": None,
        "rope.dimension_count": int(
            c.hidden_size // c.num_attention_heads * c.rope_parameters["partial_rotary_factor"]
        ),
    },
)
