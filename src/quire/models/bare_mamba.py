"""What models share of which every layer is one mixer of Mamba, without attention and feed-forward blocks."""

from __future__ import annotations

from quire.models.keys import KeySet
from quire.models.llama import LLAMA_CONFIG, LLAMA_GGUF, ROPE_KEYS
from quire.models.mamba_blocks import UNUSED_KEYS
from quire.models.names import Names, TensorName

CONTEXT = 1 << 20  # tokens: config.json has no limit, and GGUF files have this one
BARE_CONFIG: KeySet = LLAMA_CONFIG.override(
    lacks=[
        *("num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias", "attention_dropout"),
        *("intermediate_size", "mlp_bias", "max_position_embeddings", *ROPE_KEYS),
    ],
    spelling={
        **{"mamba_d_state": "state_size", "mamba_d_conv": "conv_kernel", "mamba_expand": "expand"},
        **{"mamba_conv_bias": "use_conv_bias", "mamba_proj_bias": "use_bias", "rms_norm_eps": "layer_norm_epsilon"},
    },
    defaults={
        **{"mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": True, "rms_norm_eps": 1e-5},
        **{"initializer_range": 0.1, "max_position_embeddings": CONTEXT},
    },
).override(ignores=[*UNUSED_KEYS, "intermediate_size"])
BARE_GGUF: KeySet = LLAMA_GGUF.override(
    lacks=[key for key in LLAMA_GGUF.read if key.startswith(("rope.", "attention.")) and not key.endswith("epsilon")],
    fixed=dict.fromkeys(("attention.head_count", "attention.head_count_kv", "feed_forward_length"), (0,)),
)
BARE_NAMES = Names(
    {
        "embed": TensorName("backbone.embeddings", "token_embd", ("vocab", "hidden")),
        "attn.norm": TensorName("norm", "attn_norm", ("hidden",)),
        "norm": TensorName("backbone.norm_f", "output_norm", ("hidden",)),
        "head": TensorName("lm_head", "output", ("vocab", "hidden")),
    },
    layers="backbone.layers",
    renamed={"backbone.embedding.weight": "backbone.embeddings.weight"},
)
