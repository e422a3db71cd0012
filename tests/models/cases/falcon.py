"""Toys of Falcon. GGUF has those with rope and blocks side by side, without biases.

transformers rounds the products of ALiBi to bfloat16: from position 256 on they are not those of ALiBi. And its eager
attention adds them twice, so the toy runs on sdpa.
"""

import numpy as np

from tests.models.case import TOKENS, Case, Conversion

KIND = "FalconForCausalLM"
NEW = {"new_decoder_architecture": True, "num_kv_heads": 2}
ALIBI = {"alibi": True, "attn_implementation": "sdpa"}
CASES = {
    "falcon": Case(KIND, {**TOKENS}),
    "falcon-new": Case(KIND, {**NEW, "tie_word_embeddings": False, **TOKENS}),
    "falcon-new-one-norm": Case(KIND, {**NEW, "num_ln_in_parallel_attn": 1, "layer_norm_epsilon": 1e-4, **TOKENS}),
    "falcon-biased": Case(
        KIND, {"multi_query": False, "bias": True, "ffn_hidden_size": 88, "activation": "relu", **TOKENS}, in_gguf=False
    ),
    "falcon-sequential": Case(KIND, {"parallel_attn": False, **TOKENS}, in_gguf=False),
    "falcon-alibi": Case(KIND, {"multi_query": False, **ALIBI, **TOKENS}, max_tokens=256, in_gguf=False),
}


def _tensor(name, array, c):
    """All queries, then all keys, then all values."""
    if "query_key_value" not in name:
        return array
    kv_heads = c.num_kv_heads if c.new_decoder_architecture else 1
    groups = array.reshape(kv_heads, c.num_attention_heads // kv_heads + 2, -1, c.hidden_size)
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return np.concatenate([each.reshape(-1, c.hidden_size) for each in parts])


GGUF = Conversion(
    "falcon",
    keys=lambda c: {
        "feed_forward_length": 4 * c.hidden_size,
        "attention.head_count_kv": c.num_kv_heads if c.new_decoder_architecture else 1,
        "attention.key_length": None,
        "attention.value_length": None,
        "tensor_data_layout": "jploski",
    },
    tensor=_tensor,
)
