"""Config files of DeepSeek, Kimi, GLM-4.5 and later, Llama 4 and Gemma 4 with experts, as they were published."""

from __future__ import annotations

from typing import Any

from tests.models.published import decoder
from tests.models.published_experts import FP8, FULL, SLIDING

Config = dict[str, Any]
YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}
HEADS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V2 = {
    "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "bos_token_id": 100000,
    "eos_token_id": 100001, "first_k_dense_replace": 1, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
    "moe_layer_freq": 1, "n_shared_experts": 2, "norm_topk_prob": False, "num_experts_per_tok": 6, "pretraining_tp": 1,
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "scoring_func": "softmax", "seq_aux": True, **HEADS,
    "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV2Config",
        "AutoModel": "modeling_deepseek.DeepseekV2Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV2ForCausalLM",
    },
}  # fmt: skip
V3 = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
    "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8, "q_lora_rank": 1536,
    "quantization_config": FP8 | {"fmt": "e4m3"}, "rms_norm_eps": 1e-06, "rope_theta": 10000,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", **HEADS,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
}  # fmt: skip
GLM = {
    "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338], "head_dim": 128,
    "max_position_embeddings": 131072, "model_type": "glm4_moe", "n_group": 1, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_experts_per_tok": 8, "num_nextn_predict_layers": 1, "pad_token_id": 151329,
    "partial_rotary_factor": 0.5, "rope_scaling": None, "rope_theta": 1000000, "topk_group": 1,
}  # fmt: skip
LLAMA4 = {
    "attention_bias": False, "attention_chunk_size": 8192, "attention_dropout": 0.0, "attn_scale": 0.1,
    "attn_temperature_tuning": True, "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008],
    "floor_scale": 8192, "for_llm_compressor": False, "head_dim": 128, "intermediate_size_mlp": 16384,
    "model_type": "llama4_text", "no_rope_layers": [], "num_experts_per_tok": 1, "output_router_logits": False,
    "pad_token_id": 200018, "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
}  # fmt: skip

PUBLISHED: dict[str, Config] = {
    "DeepSeek V2 Lite": decoder(
        "DeepseekV2", (2048, 10944, 27, 16, 16, 102400), **V2, moe_intermediate_size=1408, n_group=1,
        n_routed_experts=64, q_lora_rank=None, routed_scaling_factor=1.0, topk_group=1, topk_method="greedy",
    ),
    "DeepSeek V2": decoder(
        "DeepseekV2", (5120, 12288, 60, 128, 128, 102400), **V2, moe_intermediate_size=1536, n_group=8,
        n_routed_experts=160, q_lora_rank=1536, routed_scaling_factor=16.0, topk_group=3,
        topk_method="group_limited_greedy",
    ),
    "DeepSeek V3": decoder(
        "DeepseekV3", (7168, 18432, 61, 128, 128, 129280), **V3, first_k_dense_replace=3, n_group=8,
        n_routed_experts=256, num_nextn_predict_layers=1, routed_scaling_factor=2.5, topk_group=4,
    ),
    "Kimi K2": decoder(
        "DeepseekV3", (7168, 18432, 61, 64, 64, 163840),
        **V3 | {"model_type": "kimi_k2", "rope_theta": 50000.0, "max_position_embeddings": 131072},
        aux_loss_alpha=0.001, first_k_dense_replace=1, n_group=1, n_routed_experts=384, num_nextn_predict_layers=0,
        routed_scaling_factor=2.827, seq_aux=True, topk_group=1,
    ),
    "GLM 4.5 Air": decoder(
        "Glm4Moe", (4096, 10944, 46, 96, 8, 151552), **GLM, first_k_dense_replace=1, moe_intermediate_size=1408,
        n_routed_experts=128, routed_scaling_factor=1.0, use_qk_norm=False,
    ),
    "GLM 4.6": decoder(
        "Glm4Moe", (5120, 12288, 92, 96, 8, 151552), **GLM | {"max_position_embeddings": 202752},
        first_k_dense_replace=3, moe_intermediate_size=1536, n_routed_experts=160, routed_scaling_factor=2.5,
        use_qk_norm=True,
    ),
    "GLM 4.7 Flash": decoder(
        "Glm4MoeLite", (2048, 10240, 47, 20, 20, 154880), model_type="glm4_moe_lite", attention_bias=False,
        attention_dropout=0.0, eos_token_id=[154820, 154827, 154829], first_k_dense_replace=1, kv_lora_rank=512,
        max_position_embeddings=202752, moe_intermediate_size=1536, n_group=1, n_routed_experts=64, n_shared_experts=1,
        norm_topk_prob=True, num_experts_per_tok=4, num_nextn_predict_layers=1, pad_token_id=154820,
        partial_rotary_factor=1.0, q_lora_rank=768, qk_nope_head_dim=192, qk_rope_head_dim=64, rope_scaling=None,
        rope_theta=1000000, routed_scaling_factor=1.8, topk_group=1, topk_method="noaux_tc", v_head_dim=256,
    ),
    "Llama 4 Scout, its text model": decoder(
        "Llama4", (5120, 8192, 48, 40, 8, 202048), **LLAMA4, interleave_moe_layer_step=1, num_local_experts=16,
        max_position_embeddings=10485760, use_qk_norm=True,
        rope_scaling={"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    ),
    "Llama 4 Maverick, its text model": decoder(
        "Llama4", (5120, 8192, 48, 40, 8, 202048), **LLAMA4, interleave_moe_layer_step=2, num_local_experts=128,
        max_position_embeddings=1048576, moe_layers=list(range(1, 48, 2)), rope_scaling=None, use_qk_norm=False,
    ),
    "Gemma 4 26B A4B, its text model": decoder(
        "Gemma4", (2816, 2112, 30, 16, 8, 262144), model_type="gemma4_text", attention_bias=False,
        attention_dropout=0.0, attention_k_eq_v=True, enable_moe_block=True, eos_token_id=1,
        final_logit_softcapping=30.0, global_head_dim=512, head_dim=256, hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh", hidden_size_per_layer_input=0,
        layer_types=([SLIDING] * 5 + [FULL]) * 5, max_position_embeddings=262144, moe_intermediate_size=704,
        num_experts=128, num_global_key_value_heads=2, num_kv_shared_layers=0, rms_norm_eps=1e-06, sliding_window=1024,
        rope_parameters={
            FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
        },
        tie_word_embeddings=True, top_k_experts=8, use_bidirectional_attention="vision", use_double_wide_mlp=False,
        vocab_size_per_layer_input=262144,
    ),
}  # fmt: skip
