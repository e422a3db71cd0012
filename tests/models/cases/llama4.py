"""Toys of Llama 4's text model. GGUF files have chunks of 8192 tokens, and rope as llama3 in a tensor."""

import numpy as np

from tests.models.case import LLAMA3, TOKENS, Arrays, Case, Config, Conversion, Keys, llama3_divisors, rope

KIND = "Llama4ForCausalLM"
SIZES = {"num_local_experts": 8, "intermediate_size": 40, "intermediate_size_mlp": 72, "head_dim": 8, **TOKENS}
SHARP = rope("llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=32)
CASES = {
    "llama4": Case(
        KIND,
        {**SIZES, **LLAMA3, "num_hidden_layers": 5, "interleave_moe_layer_step": 2, "attention_chunk_size": 64,
         "floor_scale": 10, "attn_scale": 0.3},
        in_gguf=False,
    ),
    "llama4-converted": Case(
        KIND, {**SIZES, **LLAMA3, "num_hidden_layers": 4, "interleave_moe_layer_step": 2, "num_experts_per_tok": 2}
    ),
    "llama4-listed": Case(  # as Maverick, without norms of heads
        KIND,
        {**SIZES, **SHARP, "num_hidden_layers": 3, "moe_layers": [0, 2], "no_rope_layers": [0, 1, 1],
         "layer_types": ["chunked_attention", "full_attention", "chunked_attention"], "attention_chunk_size": 48,
         "use_qk_norm": False, "attention_bias": True, "attn_temperature_tuning": False},
        in_gguf=False,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    return {
        "feed_forward_length": c.intermediate_size_mlp,
        "expert_feed_forward_length": c.intermediate_size,
        "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok,
        "interleave_moe_layer_step": c.interleave_moe_layer_step,
    }


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": array.swapaxes(1, 2)}
    if not name.endswith("gate_up_proj"):
        return array
    parts = np.split(array.swapaxes(1, 2), 2, axis=1)
    names = [name.replace("gate_up_proj", f"{word}_proj.weight") for word in ("gate", "up")]
    return dict(zip(names, parts, strict=True))


GGUF = Conversion("llama4", keys=_keys, tensor=_tensor, extra=llama3_divisors)
