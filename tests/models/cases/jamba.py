"""Toys of Jamba. GGUF has no key that says which layers have experts."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys, split_experts
from tests.models.cases.mamba import mamba_tensor

KIND = "JambaForCausalLM"
FULL = "full_attention"
MIXER = {"mamba_d_state": 8, "mamba_dt_rank": 5}
SIZES = {**MIXER, **TOKENS, "num_hidden_layers": 4, "attn_layer_period": 3, "attn_layer_offset": 1}
CASES = {
    "jamba": Case(KIND, {**SIZES, "num_experts": 6, "num_experts_per_tok": 3}),
    "jamba-dense": Case(
        KIND,
        {**SIZES, "num_experts": 1, "num_experts_per_tok": 1, "mamba_proj_bias": True, "mamba_conv_bias": False},
        max_tokens=300,
    ),
    "jamba-sparse": Case(
        KIND,
        {**SIZES, "num_experts": 4, "expert_layer_period": 3, "expert_layer_offset": 0, "mamba_dt_rank": "auto",
         "tie_word_embeddings": True, "num_hidden_layers": 3},
        max_tokens=300,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    return {
        "attention.head_count_kv": [c.num_key_value_heads * (kind == FULL) for kind in c.layer_types],
        "ssm.conv_kernel": c.mamba_d_conv,
        "ssm.inner_size": c.mamba_expand * c.hidden_size,
        "ssm.state_size": c.mamba_d_state,
        "ssm.time_step_rank": c.mamba_dt_rank,
        "expert_count": c.num_experts,
        "expert_used_count": c.num_experts_per_tok,
    }


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    found = split_experts(name, mamba_tensor(name, array, c), c)
    if not isinstance(found, dict):
        return found
    return {each.replace("feed_forward.experts", "mlp.experts"): found[each] for each in found}


GGUF = Conversion("jamba", keys=_keys, tensor=_tensor)
