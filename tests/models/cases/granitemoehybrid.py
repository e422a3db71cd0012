"""Toys of Granite 4. In GGUF a model without experts has an ordinary feed-forward block."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys
from tests.models.cases.granite import FACTORS
from tests.models.cases.granite import GGUF as GRANITE
from tests.models.cases.granitemoe import tensors
from tests.models.cases.mamba2 import mamba2_keys, mamba2_tensor

KIND = "GraniteMoeHybridForCausalLM"
LINEAR, FULL = "linear_attention", "full_attention"
MIXER = {"mamba_n_heads": 6, "mamba_d_state": 8, "mamba_chunk_size": 16}
SIZES = {**MIXER, **TOKENS, **FACTORS, "num_hidden_layers": 3, "layer_types": [LINEAR, FULL, LINEAR]}
CASES = {
    "granitemoehybrid": Case(
        KIND,
        {**SIZES, "num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 40,
         "shared_intermediate_size": 56},
    ),
    "granitemoehybrid-dense": Case(
        KIND,
        {**SIZES, "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 56,
         "tie_word_embeddings": True},
        max_tokens=300,
    ),
    "granitemoehybrid-rope": Case(
        KIND,
        {**SIZES, "num_local_experts": 0, "shared_intermediate_size": 56, "position_embedding_type": "rope",
         "attention_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False, "time_step_limit": (0.2, 0.6)},
        max_tokens=300,
        in_gguf=False,
    ),
}  # fmt: skip


def hybrid_keys(c: Config) -> Keys:
    """The keys of mixers, and of the layers that have attention."""
    is_full = [kind == FULL for kind in c.layer_types]
    return {
        **mamba2_keys(c, c.mamba_n_heads, c.mamba_d_head, c.mamba_n_groups),
        "ssm.conv_kernel": c.mamba_d_conv,
        "ssm.state_size": c.mamba_d_state,
        "attention.head_count_kv": [c.num_key_value_heads * each for each in is_full],
    }


def _keys(c: Config) -> Keys:
    return {
        **GRANITE.keys(c),
        **hybrid_keys(c),
        "rope.scaling.finetuned": False,
        "expert_count": c.num_local_experts,
        "expert_used_count": c.num_experts_per_tok,
        "expert_shared_feed_forward_length": c.shared_intermediate_size,
    }


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    if ".mamba." in name:
        return mamba2_tensor(name, array, c.mamba_n_groups)
    found = tensors(name, array, c)
    if c.num_local_experts or not isinstance(found, dict):
        return found
    return {each.replace("mlp.shared_expert.", "mlp."): found[each] for each in found}


GGUF = Conversion("granitehybrid", keys=_keys, tensor=_tensor)
