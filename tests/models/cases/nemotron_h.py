"""Toys of Nemotron-H. transformers has a lower limit of step sizes, in prompts alone, that its authors' code lacks."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys
from tests.models.cases.mamba2 import mamba2_keys, mamba2_tensor

KIND = "NemotronHForCausalLM"
LINEAR, FULL, MLP, MOE = "linear_attention", "full_attention", "mlp", "moe"
MIXER = {"mamba_num_heads": 6, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 16,
         "time_step_min": 1e-9}  # fmt: skip
SIZES = {**MIXER, **TOKENS, "head_dim": 8}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
           "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 2.5}  # fmt: skip
CASES = {
    "nemotron_h": Case(KIND, {**SIZES, "layers_block_type": [LINEAR, MLP, FULL, LINEAR]}),
    "nemotron_h-experts": Case(
        KIND, {**SIZES, **EXPERTS, "layers_block_type": [LINEAR, MOE, FULL, MOE]}, max_tokens=300
    ),
    "nemotron_h-latent": Case(
        KIND,
        {**SIZES, **EXPERTS, "layers_block_type": [FULL, LINEAR, MOE], "moe_latent_size": 16,
         "norm_topk_prob": False},
        max_tokens=300,
    ),
    "nemotron_h-all": Case(
        KIND,
        {**SIZES, **EXPERTS, "layers_block_type": [MOE, LINEAR, MLP, FULL], "mlp_bias": True, "use_bias": True,
         "use_conv_bias": False, "n_group": 4, "topk_group": 2, "moe_latent_size": 16},
        max_tokens=300,
        in_gguf=False,  # no key says from how many groups experts are chosen
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    kinds, width = c.layers_block_type, c.moe_intermediate_size if MOE in c.layers_block_type else c.intermediate_size
    keys = {
        **mamba2_keys(c, c.mamba_num_heads, c.mamba_head_dim, c.n_groups),
        "ssm.conv_kernel": c.conv_kernel,
        "ssm.state_size": c.ssm_state_size,
        "attention.layer_norm_rms_epsilon": c.layer_norm_epsilon,
        "attention.layer_norm_epsilon": c.layer_norm_epsilon,
        "attention.head_count_kv": [c.num_key_value_heads * (kind == FULL) for kind in kinds],
        "feed_forward_length": [width * (kind in (MLP, MOE)) for kind in kinds],
    }
    return keys | ({**_expert_keys(c), "moe_latent_size": c.moe_latent_size} if MOE in kinds else {})


def _expert_keys(c: Config) -> Keys:
    numbers = {
        "count": c.n_routed_experts,
        "used_count": c.num_experts_per_tok,
        "feed_forward_length": c.moe_intermediate_size,
        "shared_feed_forward_length": c.moe_shared_expert_intermediate_size,
        "shared_count": c.n_shared_experts,
        "weights_norm": c.norm_topk_prob,
        "weights_scale": c.routed_scaling_factor,
        "group_count": c.n_group,
    }
    return {f"expert_{key}": number for key, number in numbers.items()}


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    published = name.replace("model.", "backbone.", 1) if name.startswith("model.") else name
    if name.endswith("e_score_correction_bias"):
        return {published.replace("_bias", ".bias"): array}
    if "mixer.experts." in name:
        return {name.replace("mixer.", "mlp.") + ".weight": array}
    found = mamba2_tensor(published, array, c.n_groups)
    return found if isinstance(found, dict) else {published: found}


GGUF = Conversion(
    "nemotron_h",
    name_of=lambda c: "nemotron_h_moe" if MOE in c.layers_block_type else None,
    keys=_keys,
    tensor=_tensor,
)
