"""Config files of LFM2, Qwen3-Next, Qwen3.5 and Kimi-Linear, as they were published."""

from __future__ import annotations

from typing import Any

from tests.models.published import decoder

Config = dict[str, Any]
FULL, LINEAR, CONV = "full_attention", "linear_attention", "conv"
LFM2 = {
    "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256, "block_norm_eps": 1e-05, "block_out_init_scale": 1.0, "block_use_swiglu": True,
    "block_use_xavier_init": True, "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False,
    "conv_use_xavier_init": True, "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "initializer_range": 0.02, "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-05,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
    "architectures": ["Lfm2ForCausalLM"], "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0",
    "use_cache": True, "use_pos_enc": True, "vocab_size": 65536,
}  # fmt: skip
LFM2_MOE = {
    "architectures": ["Lfm2MoeForCausalLM"], "bos_token_id": 1, "conv_L_cache": 3, "conv_bias": False,
    "dtype": "bfloat16", "eos_token_id": 7, "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 7168,
    "layer_types": [FULL if i in (2, 6, 10, 14, 18, 21) else CONV for i in range(24)],
    "max_position_embeddings": 128000, "model_type": "lfm2_moe", "moe_intermediate_size": 1792, "norm_eps": 1e-05,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_dense_layers": 2, "num_experts": 32,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "pad_token_id": 0,
    "rope_theta": 1000000.0, "routed_scaling_factor": 1.0, "transformers_version": "4.57.0.dev0", "use_cache": True,
    "use_expert_bias": True, "vocab_size": 65536,
}  # fmt: skip
DELTA = {
    "attention_bias": False, "attention_dropout": 0.0, "full_attention_interval": 4, "head_dim": 256,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144, "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
}  # fmt: skip
EXPERTS = {
    "mlp_only_layers": [], "moe_intermediate_size": 512, "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip


def qwen35(kind: str, sizes: tuple[int, int, int, int, int, int], **more: Any) -> Config:
    """A model of text and images; its tower is left out."""
    text = decoder(kind, sizes, **DELTA, **more)
    rope = {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
            "rope_theta": 10000000, "rope_type": "default"}  # fmt: skip
    name = "qwen3_5" if kind == "Qwen3_5" else "qwen3_5_moe"
    text |= {
        "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 248044, "mamba_ssm_dtype": "float32",
        "layer_types": ([LINEAR] * 3 + [FULL]) * (sizes[2] // 4), "model_type": f"{name}_text",
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "rope_parameters": rope,
    }  # fmt: skip
    for key in (
        "architectures",
        "torch_dtype",
        "transformers_version",
        *(() if kind == "Qwen3_5" else ("intermediate_size",)),
    ):
        del text[key]
    return {
        "architectures": [f"{kind}ForConditionalGeneration"], "image_token_id": 248056, "model_type": name,
        "num_hidden_layers": sizes[2], "text_config": text, "tie_word_embeddings": text["tie_word_embeddings"],
        "transformers_version": "4.57.0.dev0", "video_token_id": 248057, "vision_config": {"depth": 27},
    }  # fmt: skip


KIMI_LAYERS = [4, 8, 12, 16, 20, 24, 27]
PUBLISHED: dict[str, Config] = {
    "LFM2 350M": {**LFM2, "block_dim": 1024, "block_ff_dim": 6656, "conv_dim": 1024, "conv_dim_out": 1024,
                  "hidden_size": 1024, "num_attention_heads": 16, "num_heads": 16},
    "LFM2 1.2B": {**LFM2, "block_dim": 2048, "block_ff_dim": 12288, "conv_dim": 2048, "conv_dim_out": 2048,
                  "hidden_size": 2048, "num_attention_heads": 32, "num_heads": 32},
    "LFM2 8B A1B": LFM2_MOE,
    "Qwen3-Next 80B A3B": decoder(
        "Qwen3Next", (2048, 5120, 48, 16, 2, 151936), **DELTA, **EXPERTS, model_type="qwen3_next",
        bos_token_id=151643, eos_token_id=151645, decoder_sparse_step=1, norm_topk_prob=True, num_experts=512,
        num_experts_per_tok=10, rope_scaling=None, rope_theta=10000000,
    ),
    "Qwen3.5 0.8B": qwen35("Qwen3_5", (1024, 3584, 24, 8, 2, 248320)) ,
    "Qwen3.5 9B": qwen35("Qwen3_5", (4096, 12288, 32, 16, 4, 248320)),
    "Qwen3.5 27B": qwen35("Qwen3_5", (5120, 17408, 64, 24, 4, 248320)),
    "Qwen3.5 35B A3B": qwen35("Qwen3_5Moe", (2048, 0, 40, 16, 2, 248320), **EXPERTS, num_experts=256,
                              num_experts_per_tok=8),
    "Kimi-Linear 48B A3B": {
        "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584, "dtype": "bfloat16",
        "eos_token_id": 163586, "first_k_dense_replace": 1, "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304,
        "initializer_range": 0.02, "intermediate_size": 9216, "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": KIMI_LAYERS, "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
            "kda_layers": [layer for layer in range(1, 28) if layer not in KIMI_LAYERS],
        },
        "mla_use_nope": True, "model_max_length": 1048576, "model_type": "kimi_linear", "moe_intermediate_size": 1024,
        "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
        "num_attention_heads": 32, "num_expert_group": 1, "num_experts": 256, "num_experts_per_token": 8,
        "num_hidden_layers": 27, "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
        "pad_token_id": 163839, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "routed_scaling_factor": 2.446,
        "tie_word_embeddings": False, "topk_group": 1, "transformers_version": "4.57.1", "use_cache": True,
        "use_grouped_topk": True, "v_head_dim": 128, "vocab_size": 163840,
        "auto_map": {
            "AutoConfig": "configuration_kimi.KimiLinearConfig",
            "AutoModel": "modeling_kimi.KimiLinearModel",
            "AutoModelForCausalLM": "modeling_kimi.KimiLinearForCausalLM",
        },
    },
}  # fmt: skip
# What differs in the sizes of Qwen3.5.
PUBLISHED["Qwen3.5 0.8B"]["text_config"] |= {"linear_num_value_heads": 16, "tie_word_embeddings": True}
PUBLISHED["Qwen3.5 27B"]["text_config"] |= {"linear_num_value_heads": 48}
