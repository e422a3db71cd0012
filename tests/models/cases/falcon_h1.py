"""Toys of Falcon-H1. GGUF has no keys for its factors: they are in the weights."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys
from tests.models.cases.mamba2 import mamba2_keys, mamba2_tensor

KIND = "FalconH1ForCausalLM"
MIXER = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 16}
FACTORS = {
    "embedding_multiplier": 3.0, "lm_head_multiplier": 0.25, "key_multiplier": 0.5, "attention_in_multiplier": 1.5,
    "attention_out_multiplier": 0.7, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.4,
    "mlp_multipliers": [0.8, 0.3], "ssm_multipliers": [0.35, 0.25, 1.1, 0.5, 0.3],
}  # fmt: skip
SIZES = {**MIXER, **FACTORS, **TOKENS}
CASES = {
    "falcon_h1": Case(KIND, SIZES),
    "falcon_h1-norm": Case(
        KIND, {**SIZES, "mamba_rms_norm": True, "mamba_norm_before_gate": False}, max_tokens=300
    ),
    "falcon_h1-biased": Case(
        KIND,
        {**MIXER, **TOKENS, "mamba_rms_norm": True, "attention_bias": True, "mlp_bias": True, "projectors_bias": True,
         "mamba_proj_bias": True, "mamba_conv_bias": False, "time_step_limit": (0.2, 0.6),
         "tie_word_embeddings": True, "ssm_multipliers": [0.5, 1.0, 1.0, 1.0, 2.0], "head_dim": 16},
        max_tokens=300,
        in_gguf=False,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    dim = c.hidden_size // c.num_attention_heads
    return {
        **mamba2_keys(c, c.mamba_n_heads, c.mamba_d_head, c.mamba_n_groups),
        "ssm.conv_kernel": c.mamba_d_conv,
        "ssm.state_size": c.mamba_d_state,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "vocab_size": c.vocab_size,
    }


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    into, out = c.attention_in_multiplier, c.attention_out_multiplier
    shared = c.mamba_n_groups * c.mamba_d_state
    rows = np.repeat(c.ssm_multipliers, (c.mamba_d_ssm, c.mamba_d_ssm, shared, shared, c.mamba_n_heads))
    factors = {
        "down_proj": c.mlp_multipliers[1],
        "gate_proj": c.mlp_multipliers[0],
        "k_proj": c.key_multiplier * into,
        "q_proj": into,
        "v_proj": into,
        "o_proj": out,
        "out_proj": c.ssm_out_multiplier,
        "in_proj": (c.ssm_in_multiplier * rows)[:, None],
        "lm_head": c.lm_head_multiplier,
        "embed_tokens": c.embedding_multiplier,
    }
    factor = factors.get(name.split(".")[-2], 1.0)
    return mamba2_tensor(name, (array * factor).astype(np.float32), c.mamba_n_groups)


GGUF = Conversion("falcon-h1", keys=_keys, tensor=_tensor)
