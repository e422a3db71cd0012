"""Toys of LFM2. GGUF files have the adjusted width of the feed-forward block, and 0 key heads in other layers."""

import numpy as np

from tests.models.case import TOKENS, Case, Config, Conversion, Keys

KIND = "Lfm2ForCausalLM"
FULL, CONV = "full_attention", "conv"
WIDTH = {"block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3, "norm_eps": 1e-4}
CASES = {
    "lfm2": Case(KIND, {**TOKENS, **WIDTH, "num_hidden_layers": 3, "layer_types": [CONV, FULL, CONV]}),
    "lfm2-biased": Case(
        KIND,
        {**TOKENS, "block_auto_adjust_ff_dim": False, "full_attn_idxs": [0], "conv_bias": True, "conv_L_cache": 4,
         "tie_word_embeddings": False},
    ),
}  # fmt: skip


def conv_keys(c: Config) -> Keys:
    """The keys of convolutions."""
    heads = [c.num_key_value_heads if kind == FULL else 0 for kind in c.layer_types]
    return {
        "attention.head_count_kv": heads,
        "attention.layer_norm_rms_epsilon": c.norm_eps,
        "attention.layer_norm_epsilon": None,
        "shortconv.l_cache": c.conv_L_cache,
        "vocab_size": c.vocab_size,
    }


def conv_tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray:
    """The kernels are matrices."""
    return array[:, 0] if name.endswith("conv.conv.weight") else array


def _keys(c: Config) -> Keys:
    width = c.intermediate_size
    if c.block_auto_adjust_ff_dim:
        width = int(c.block_ffn_dim_multiplier * int(2 * width / 3))
        width = (width + c.block_multiple_of - 1) // c.block_multiple_of * c.block_multiple_of
    return {**conv_keys(c), "feed_forward_length": width}


GGUF = Conversion("lfm2", keys=_keys, tensor=conv_tensor)
