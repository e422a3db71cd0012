"""Toys of Bamba. In GGUF it is a Granite 4 without experts."""

import numpy as np

from tests.models.case import TOKENS, Arrays, Case, Config, Conversion, Keys, pair_heads
from tests.models.cases.granitemoehybrid import MIXER, hybrid_keys
from tests.models.cases.mamba2 import mamba2_tensor

KIND = "BambaForCausalLM"
SIZES = {**MIXER, **TOKENS, "num_hidden_layers": 3, "attn_layer_indices": [1]}
CASES = {
    "bamba": Case(KIND, SIZES),
    "bamba-biased": Case(
        KIND,
        {**SIZES, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "mamba_conv_bias": False,
         "tie_word_embeddings": True, "time_step_limit": (0.2, 0.6)},
        max_tokens=300,
        in_gguf=False,
    ),
}  # fmt: skip


def _keys(c: Config) -> Keys:
    dim = c.hidden_size // c.num_attention_heads
    return {**hybrid_keys(c), "rope.dimension_count": dim // 2, "rope.scaling.finetuned": True}


def _tensor(name: str, array: np.ndarray, c: Config) -> np.ndarray | Arrays:
    return mamba2_tensor(name, array, c.mamba_n_groups) if ".mamba." in name else pair_heads(name, array, c)


GGUF = Conversion("granitehybrid", keys=_keys, tensor=_tensor)
