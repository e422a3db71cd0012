"""Config files of families beyond those in `published`, as their publishers wrote them.

Most numbers were compared with transformers' classes and pages, or with public copies; some are from memory.
"""

from __future__ import annotations

from typing import Any

from tests.models.published import decoder

Config = dict[str, Any]
FULL, SLIDING = "full_attention", "sliding_attention"
GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
GEMMA = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "head_dim": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
    **GELU,
}
COHERE = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.0625,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
GLM = {
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
    "rope_theta": 10000.0,
}
OLMO = {"attention_bias": False, "attention_dropout": 0.0, "rope_theta": 500000, "rms_norm_eps": 1e-06}
OLMO_TOKENS = {"eos_token_id": 100257, "pad_token_id": 100277}  # of the second and third generation
LONG_FACTORS = [1.0 + i / 8 for i in range(48)]


def without(key: str, config: Config) -> Config:
    """The same without a key."""
    return {name: config[name] for name in config if name != key}


PUBLISHED: dict[str, Config] = {
    "Gemma 2B": decoder(
        "Gemma", (2048, 16384, 18, 8, 1, 256000), **GEMMA | {"hidden_act": "gelu", "hidden_activation": None}
    ),
    "Gemma 2 9B": decoder(
        "Gemma2",
        (3584, 14336, 42, 16, 8, 256000),
        **GEMMA,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        cache_implementation="hybrid",
        query_pre_attn_scalar=256,
        sliding_window=4096,
        sliding_window_size=4096,
    ),
    "Gemma 3 1B": decoder(
        "Gemma3",
        (1152, 6912, 26, 4, 1, 262144),
        **GEMMA | {"rope_theta": 1000000, "eos_token_id": [1, 106], "max_position_embeddings": 32768},
        model_type="gemma3_text",
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        cache_implementation="hybrid",
        query_pre_attn_scalar=256,
        rope_local_base_freq=10000,
        rope_scaling=None,
        sliding_window=512,
        sliding_window_pattern=6,
    ),
    "VaultGemma 1B": decoder(
        "VaultGemma",
        (1152, 6912, 26, 4, 4, 256000),
        **GEMMA | {"max_position_embeddings": 1024},
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        layer_types=[FULL] * 26,
        query_pre_attn_scalar=256,
        sliding_window=512,
    ),
    "Command R": decoder(
        "Cohere",
        (8192, 22528, 40, 64, 64, 256000),
        **COHERE,
        model_max_length=131072,
        rope_theta=8000000.0,
        use_qk_norm=False,
    ),
    "Command R7B": decoder(
        "Cohere2",
        (4096, 14336, 32, 32, 8, 256000),
        **COHERE | {"logit_scale": 0.25},
        cache_implementation="hybrid",
        head_dim=128,
        layer_switch=4,
        order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj",
        rope_scaling=None,
        rope_theta=50000,
        rotary_pct=1.0,
        sliding_window=4096,
        sliding_window_pattern=4,
        use_embedding_sharing=True,
        use_gated_activation=True,
        use_parallel_block=True,
        use_parallel_embedding=True,
    ),
    "GLM-4 9B chat": decoder("Glm", (4096, 13696, 40, 32, 2, 151552), **GLM, attention_bias=True),
    "GLM-4 9B 0414": decoder(
        "Glm4",
        (4096, 13696, 40, 32, 2, 151552),
        **GLM | {"rms_norm_eps": 1e-05, "max_position_embeddings": 32768},
        attention_bias=False,
    ),
    "SmolLM3 3B": decoder(
        "SmolLM3",
        (2048, 11008, 36, 16, 4, 128256),
        attention_bias=False,
        attention_dropout=0.0,
        eos_token_id=128012,
        layer_types=[FULL] * 36,
        max_position_embeddings=65536,
        max_window_layers=28,
        mlp_bias=False,
        no_rope_layer_interval=4,
        no_rope_layers=[1, 1, 1, 0] * 9,
        pretraining_tp=2,
        rms_norm_eps=1e-06,
        rope_scaling=None,
        rope_theta=5000000.0,
        sliding_window=None,
        tie_word_embeddings=True,
        use_sliding_window=False,
    ),
    "OLMo 7B": without(
        "rms_norm_eps",
        decoder(
            "Olmo",
            (4096, 11008, 32, 32, 32, 50304),
            **OLMO | {"rope_theta": 10000.0, "eos_token_id": 50279, "pad_token_id": 1},
            clip_qkv=None,
            max_position_embeddings=2048,
            rope_scaling=None,
        ),
    ),
    "OLMo 2 7B": decoder("Olmo2", (4096, 11008, 32, 32, 32, 100352), **OLMO, **OLMO_TOKENS, rope_scaling=None),
    "Olmo 3 7B": decoder(
        "Olmo3",
        (4096, 11008, 32, 32, 32, 100278),
        **OLMO,
        **OLMO_TOKENS,
        layer_types=([SLIDING] * 3 + [FULL]) * 8,
        max_position_embeddings=65536,
        rope_scaling={
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "yarn",
        },
        sliding_window=4096,
        use_cache=False,
    ),
    "Phi-2": decoder(
        "Phi",
        (2560, 10240, 32, 32, 32, 51200),
        hidden_act="gelu_new",
        attention_dropout=0.0,
        bos_token_id=50256,
        embd_pdrop=0.0,
        eos_token_id=50256,
        layer_norm_eps=1e-05,
        max_position_embeddings=2048,
        partial_rotary_factor=0.4,
        qk_layernorm=False,
        resid_pdrop=0.1,
        rope_scaling=None,
        rope_theta=10000.0,
    ),
    "Phi-4 mini": decoder(
        "Phi3",
        (3072, 8192, 32, 24, 8, 200064),
        attention_bias=False,
        attention_dropout=0.0,
        bos_token_id=199999,
        embd_pdrop=0.0,
        eos_token_id=199999,
        full_attn_mod=1,
        interpolate_factor=1,
        lm_head_bias=False,
        max_position_embeddings=131072,
        mlp_bias=False,
        original_max_position_embeddings=4096,
        pad_token_id=199999,
        partial_rotary_factor=0.75,
        resid_pdrop=0.0,
        rope_scaling={"long_factor": LONG_FACTORS, "short_factor": [1.0] * 48, "type": "longrope"},
        rope_theta=10000.0,
        sliding_window=262144,
        tie_word_embeddings=True,
    ),
    "Gemma 4 E2B, its text model": decoder(
        "Gemma4",
        (1536, 6144, 35, 8, 1, 262144),
        **GEMMA | {"rope_theta": None, "max_position_embeddings": 131072},
        model_type="gemma4_text",
        attention_k_eq_v=False,
        enable_moe_block=False,
        final_logit_softcapping=30.0,
        global_head_dim=512,
        hidden_size_per_layer_input=256,
        layer_types=([SLIDING] * 4 + [FULL]) * 7,
        moe_intermediate_size=None,
        num_experts=None,
        num_global_key_value_heads=None,
        num_kv_shared_layers=20,
        rope_parameters={
            FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
        },
        sliding_window=512,
        top_k_experts=None,
        use_bidirectional_attention=None,
        use_double_wide_mlp=True,
        vocab_size_per_layer_input=262144,
    ),
}
