"""Toys of Kimi-Linear. In GGUF files layers with KDA have 0 key heads, and kernels have four axes."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys
from tests.models.cases.deepseek_v2 import EXPERTS, HEADS, latent_keys, latent_tensor, routing_keys

KIND = "KimiLinearForCausalLM"
FULL, LINEAR = "full_attention", "linear_attention"
TOY = {
    **{**HEADS, **TOKENS, "num_local_experts": 8, "n_shared_experts": 1},
    **{key: EXPERTS[key] for key in ("num_experts_per_tok", "moe_intermediate_size")},
    **{"num_hidden_layers": 2, "layer_types": [LINEAR, FULL], "max_position_embeddings": 1088},
    **{"linear_num_heads": 6, "linear_head_dim": 8},
}
LISTS = {"kda_layers": [2, 3], "full_attn_layers": [1], "num_heads": 2, "head_dim": 12, "short_conv_kernel_size": 3}
CASES = {
    "kimi_linear": Case(KIND, TOY, as_saved=True),
    "kimi_linear-listed": Case(
        KIND,
        {**TOY, "num_hidden_layers": 3, "layer_types": None, "linear_attn_config": LISTS, "n_group": 2,
         "topk_group": 1, "q_lora_rank": 28,
         "attention_bias": True, "mlp_layer_types": ["sparse", "dense", "sparse"], "norm_topk_prob": False},
        in_gguf=False,
        as_saved=True,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    c.rope_parameters = {}  # it rotates nothing
    c.first_k_dense_replace = c.mlp_layer_types.index("sparse")
    return {
        **latent_keys(c),
        **routing_keys(c, 2),
        "attention.value_length": None,
        "attention.head_count_kv": [1 if kind == FULL else 0 for kind in c.layer_types],
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "kda.head_dim": c.linear_head_dim,
        "vocab_size": c.vocab_size,
    }


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    name = name.replace(".forget_gate.", ".")
    if name.endswith("A_log"):
        return {name: -np.exp(array)}
    if name.endswith("dt_bias"):
        return {name.replace("dt_bias", "dt_proj.bias"): array}
    if name.endswith("conv1d.weight"):
        parts = zip("qkv", np.split(array[None], 3, axis=1), strict=True)
        return {name.replace("conv1d", f"{word}_conv1d"): part for word, part in parts}
    made = latent_tensor(name, array, c)
    return made if isinstance(made, dict) else {name: made}


GGUF = Conversion("kimi-linear", keys=_keys, tensor=_tensor)
