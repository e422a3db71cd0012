"""Toys for the one-kernel step for few rows: wide enough for its boxes of 128 bytes, FP8 too, one for each property."""

from __future__ import annotations

from typing import Any

from tests.models.case import TOKENS, rope
from tests.models.toys import Toy, toy_of

SIZES = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "max_position_embeddings": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
TWO_WINDOWS = {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1}
FACTORS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.4, "logits_scaling": 3.0,
}  # fmt: skip
GEMMA = {"head_dim": 256, "sliding_window": 33, "query_pre_attn_scalar": 100}
# a class of transformers, and its configuration where it differs from SIZES
TOYS: dict[str, tuple[str, dict[str, Any]]] = {
    "heads of 64": ("LlamaForCausalLM", {}),
    "norms of heads": ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    "norms of heads of 128": ("Qwen3ForCausalLM", {"head_dim": 128, "num_attention_heads": 6}),
    "a window": ("MistralForCausalLM", {"sliding_window": 77}),
    "a window of one token": ("MistralForCausalLM", {"sliding_window": 1}),
    "layers with and without a window": ("Qwen2ForCausalLM", TWO_WINDOWS),
    "rope of a part of each head": ("Phi3ForCausalLM", {**rope("default", partial_rotary_factor=0.75), **TOKENS}),
    "layers with and without rope": ("SmolLM3ForCausalLM", {"no_rope_layers": [0, 1], **TOKENS}),
    "rope of adjacent numbers, norms after blocks": ("Glm4ForCausalLM", {"attention_bias": True, **TOKENS}),
    "factors": ("GraniteForCausalLM", FACTORS),
    "softcaps, norms after blocks, heads of 256": ("Gemma2ForCausalLM", {**GEMMA, "attn_logit_softcapping": 8.0}),
    "two ropes, norms after blocks, heads of 256": (
        "Gemma3ForCausalLM", {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "norms after blocks only, and of all heads": ("Olmo2ForCausalLM", TOKENS),
}  # fmt: skip


def property_toy(name: str) -> Toy:
    """Make the toy that has a property."""
    kind, different = TOYS[name]
    return toy_of(kind, {**SIZES, **different}, seed=5)
