"""Toys of LFM2-MoE. GGUF has no key for weights that are not renormalized, nor for models without a correction."""

import numpy as np

from tests.models.case import EXPERTS, TOKENS, Arrays, Case, Config, Conversion, Keys, expert_keys, split_experts
from tests.models.cases.lfm2 import CONV, FULL, conv_keys, conv_tensor

KIND = "Lfm2MoeForCausalLM"
TOY = {**TOKENS, **EXPERTS, "num_hidden_layers": 3, "num_dense_layers": 1, "layer_types": [CONV, FULL, CONV]}
OTHER = {"norm_topk_prob": False, "routed_scaling_factor": 1.5, "use_expert_bias": False, "conv_bias": True}
CASES = {
    "lfm2_moe": Case(KIND, {**TOY, "norm_eps": 1e-4}),
    "lfm2_moe-uncorrected": Case(KIND, {**TOY, **OTHER}, in_gguf=False),
}


def _keys(c: Config) -> Keys:
    return {
        **conv_keys(c),
        **expert_keys(c),
        "leading_dense_block_count": c.num_dense_layers,
        "expert_gating_func": 2,
    }


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    if name.endswith("expert_bias"):
        return {f"{name}.bias": array}
    return split_experts(name, conv_tensor(name, array, c), c)


GGUF = Conversion("lfm2moe", keys=_keys, tensor=_tensor)
