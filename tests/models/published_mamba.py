"""Config files of models with mixers of Mamba, as their publishers wrote them."""

from __future__ import annotations

from typing import Any

from tests.models.published import decoder

Config = dict[str, Any]
STEPS = {"time_step_floor": 0.0001, "time_step_max": 0.1, "time_step_min": 0.001}
TRAINED = {"rescale_prenorm_residual": False, "residual_in_fp32": True, "time_step_init_scheme": "random",
           "time_step_scale": 1.0, **STEPS}  # fmt: skip
COMMON = {"hidden_act": "silu", "initializer_range": 0.1, "use_bias": False, "use_cache": True, "use_conv_bias": True}
BAMBA = {"attention_bias": False, "attention_dropout": 0.0, "mamba_chunk_size": 256, "mamba_conv_bias": True,
         "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_proj_bias": False}  # fmt: skip
GRANITE = {
    **{**BAMBA, "bos_token_id": 100257, "eos_token_id": 100257, "pad_token_id": 100256},
    **{"embedding_multiplier": 12, "init_method": "mup", "initializer_range": 0.1, "mamba_d_state": 128},
    **{"max_position_embeddings": 131072, "model_type": "granitemoehybrid", "normalization_function": "rmsnorm"},
    **{"output_router_logits": False, "position_embedding_type": "nope", "rope_scaling": None, "rope_theta": 10000},
    **{"router_aux_loss_coef": 0.0, "tie_word_embeddings": True},
}
EVERY_TENTH = ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)]
FALCON_H1 = {
    **{"attention_bias": False, "attention_dropout": 0.0, "attention_in_multiplier": 1.0, "attn_layer_indices": None},
    **{"mamba_chunk_size": 128, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_groups": 1},
    **{"mamba_norm_before_gate": False, "mamba_proj_bias": False, "mamba_rms_norm": False, "mamba_use_mlp": True},
    **{"mlp_bias": False, "model_type": "falcon_h1", "num_logits_to_keep": 1, "projectors_bias": False},
    **{"rope_scaling": None, "rope_theta": 100000000000.0, "ssm_in_multiplier": 1.25},
    "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
}
NEMOTRON_H = {
    **{"attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "chunk_size": 128},
    **{"conv_kernel": 4, "expand": 2, "hidden_dropout": 0.0, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64},
    **{"mamba_hidden_act": "silu", "mamba_proj_bias": False, "mlp_bias": False, "mlp_hidden_act": "relu2"},
    **{"model_type": "nemotron_h", "n_groups": 8, "num_logits_to_keep": 1, "rescale_prenorm_residual": True},
    **{"residual_in_fp32": False, "sliding_window": None, "ssm_state_size": 128, "use_bias": False},
    **{"use_conv_bias": True, "use_mamba_kernels": True, "time_step_limit": [0.0, float("inf")], **STEPS},
}
NEMOTRON_CODE = {
    "AutoConfig": "configuration_nemotron_h.NemotronHConfig",
    "AutoModelForCausalLM": "modeling_nemotron_h.NemotronHForCausalLM",
}


def without(config: Config, *keys: str) -> Config:
    """The same without these keys."""
    return {key: value for key, value in config.items() if key not in keys}


PUBLISHED: dict[str, Config] = {
    "Mamba 130M": {
        **{**COMMON, **TRAINED, "architectures": ["MambaForCausalLM"], "model_type": "mamba", "_name_or_path": ""},
        **{"conv_kernel": 4, "d_inner": 1536, "d_model": 768, "expand": 2, "fused_add_norm": True, "hidden_size": 768},
        **{"intermediate_size": 1536, "layer_norm_epsilon": 1e-05, "n_layer": 24, "num_hidden_layers": 24},
        **{"pad_vocab_size_multiple": 8, "rms_norm": True, "ssm_cfg": {}, "state_size": 16, "time_step_rank": 48},
        **{"vocab_size": 50280, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    },
    "Falcon-Mamba 7B": {
        **{**COMMON, **TRAINED, "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"},
        **{"bos_token_id": 0, "conv_kernel": 4, "eos_token_id": 11, "expand": 16, "hidden_size": 4096},
        **{"intermediate_size": 8192, "layer_norm_epsilon": 1e-05, "num_hidden_layers": 64, "pad_token_id": 11},
        **{"state_size": 16, "tie_word_embeddings": False, "time_step_rank": 256, "vocab_size": 65024},
    },
    "Mamba-2 780M": {
        **{**COMMON, **STEPS, "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "chunk_size": 256},
        **{"conv_kernel": 4, "expand": 2, "head_dim": 64, "hidden_size": 1536, "layer_norm_epsilon": 1e-05},
        **{"n_groups": 1, "num_heads": 48, "num_hidden_layers": 48, "residual_in_fp32": True, "rms_norm": True},
        **{"state_size": 128, "tie_word_embeddings": True, "time_step_limit": [0.0, float("inf")]},
        **{"time_step_rank": 96, "vocab_size": 50288, "norm_before_gate": True, "rescale_prenorm_residual": False},
    },
    "Jamba 1.5 Mini": {
        **decoder("Jamba", (4096, 14336, 32, 32, 8, 65536), attention_dropout=0.0, bos_token_id=1),
        **{"attn_layer_offset": 4, "attn_layer_period": 8, "eos_token_id": [2, 518], "expert_layer_offset": 1},
        **{"expert_layer_period": 2, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_state": 16},
        **{"mamba_dt_rank": 256, "mamba_expand": 2, "mamba_proj_bias": False, "max_position_embeddings": 262144},
        **{"num_experts": 16, "num_experts_per_tok": 2, "num_logits_to_keep": 1, "output_router_logits": False},
        **{"pad_token_id": 0, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001, "sliding_window": None},
        "use_mamba_kernels": True,
    },
    "Bamba 9B": decoder(
        "Bamba", (4096, 14336, 32, 32, 8, 128256), **BAMBA, attn_layer_indices=[9, 18, 27], mamba_d_head=64,
        mamba_d_state=128, mamba_n_heads=128, max_position_embeddings=262144, num_logits_to_keep=1,
        attn_rotary_emb=64, rope_theta=10000.0,
    ),
    "Granite 4.0 H 350M": decoder(
        "GraniteMoeHybrid", (768, 2048, 32, 12, 4, 100352),
        **{**GRANITE, "attention_multiplier": 0.015625, "logits_scaling": 3, "mamba_d_head": 32, "mamba_n_heads": 48},
        layer_types=["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)],
        num_experts_per_tok=0, num_local_experts=0, residual_multiplier=0.246, shared_intermediate_size=2048,
    ),
    "Granite 4.0 H Tiny": decoder(
        "GraniteMoeHybrid", (1536, 512, 40, 12, 4, 100352),
        **{**GRANITE, "attention_multiplier": 0.0078125, "logits_scaling": 6, "mamba_d_head": 64, "mamba_n_heads": 48},
        layer_types=EVERY_TENTH, num_experts_per_tok=6, num_local_experts=64, residual_multiplier=0.22,
        shared_intermediate_size=1024,
    ),
    "Falcon-H1 0.5B": decoder(
        "FalconH1", (1024, 2048, 36, 8, 2, 32784),
        **{**FALCON_H1, "attention_out_multiplier": 0.9375, "embedding_multiplier": 5.656854249492381, "head_dim": 64},
        **{"key_multiplier": 0.39062499999999994, "lm_head_multiplier": 0.0390625, "mamba_d_head": 64},
        **{"mamba_d_ssm": 1536, "mamba_d_state": 128, "mamba_n_heads": 24, "max_position_embeddings": 16384},
        mlp_multipliers=[0.8838834764831844, 0.5859375], ssm_out_multiplier=0.23570226039551587,
    ),
    "Nemotron-H 8B": without(
        decoder(
            "NemotronH", (4096, 21504, 52, 32, 8, 131072),
            **{**NEMOTRON_H, "attention_head_dim": 128, "auto_map": NEMOTRON_CODE, "mamba_num_heads": 128},
            hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        ),
        "hidden_act", "rms_norm_eps",
    ),
    "Nemotron 3 Nano 30B A3B": without(
        decoder(
            "NemotronH", (2688, 1856, 52, 32, 2, 131072),
            **{**NEMOTRON_H, "auto_map": NEMOTRON_CODE, "head_dim": 128, "mamba_num_heads": 64},
            **{"mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144, "moe_intermediate_size": 1856},
            **{"moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_routed_experts": 128},
            **{"n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": True, "num_experts_per_tok": 6},
            **{"partial_rotary_factor": 1.0, "rope_theta": 10000, "routed_scaling_factor": 2.5, "topk_group": 1},
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        ),
        "hidden_act", "rms_norm_eps",
    ),
}  # fmt: skip
