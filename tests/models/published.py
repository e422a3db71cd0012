"""Config files as publishers and common tools write them, all of which must be accepted."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def decoder(kind: str, sizes: tuple[int, int, int, int, int, int], **more: Any) -> Config:
    """`sizes`: hidden, intermediate, layers, heads, key heads, vocabulary."""
    hidden, ffn, layers, heads, kv_heads, vocab = sizes
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.44.2",
        "use_cache": True,
        "max_position_embeddings": 4096,
        **more,
    }


LLAMA_2 = decoder(
    "Llama",
    (4096, 11008, 32, 32, 32, 32000),
    _name_or_path="meta-llama/Llama-2-7b-hf",
    bos_token_id=1,
    eos_token_id=2,
    pretraining_tp=1,
    rope_scaling=None,
    torch_dtype="float16",
)
LLAMA_3 = decoder(
    "Llama",
    (4096, 14336, 32, 32, 8, 128256),
    attention_bias=False,
    attention_dropout=0.0,
    bos_token_id=128000,
    eos_token_id=[128001, 128008, 128009],
    max_position_embeddings=131072,
    mlp_bias=False,
    pretraining_tp=1,
    rope_scaling={
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    rope_theta=500000.0,
)
MISTRAL = decoder(
    "Mistral",
    (4096, 14336, 32, 32, 8, 32000),
    bos_token_id=1,
    eos_token_id=2,
    max_position_embeddings=32768,
    rope_theta=10000.0,
    sliding_window=4096,
)
QWEN_2 = decoder(
    "Qwen2",
    (896, 4864, 24, 14, 2, 151936),
    attention_dropout=0.0,
    bos_token_id=151643,
    eos_token_id=151645,
    max_position_embeddings=32768,
    max_window_layers=21,
    rms_norm_eps=1e-06,
    rope_theta=1000000.0,
    sliding_window=32768,
    tie_word_embeddings=True,
    use_sliding_window=False,
)
QWEN_3 = decoder(
    "Qwen3",
    (1024, 3072, 28, 16, 8, 151936),
    attention_bias=False,
    attention_dropout=0.0,
    bos_token_id=151643,
    eos_token_id=151645,
    head_dim=128,
    max_position_embeddings=40960,
    max_window_layers=28,
    rms_norm_eps=1e-06,
    rope_scaling=None,
    rope_theta=1000000,
    sliding_window=None,
    tie_word_embeddings=True,
    use_sliding_window=False,
)
SMOLLM_2 = decoder(
    "Llama",
    (576, 1536, 30, 9, 3, 49152),
    attention_bias=False,
    attention_dropout=0.0,
    bos_token_id=1,
    eos_token_id=2,
    initializer_range=0.041666666666666664,
    is_llama_config=True,
    max_position_embeddings=8192,
    mlp_bias=False,
    pad_token_id=2,
    pretraining_tp=1,
    rope_interleaved=False,
    rope_scaling=None,
    rope_theta=100000,
    tie_word_embeddings=True,
    **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}},
)

AWQ = {
    "backend": "autoawq",
    "bits": 4,
    "do_fuse": False,
    "exllama_config": None,
    "fuse_max_seq_len": None,
    "group_size": 128,
    "modules_to_fuse": None,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
GPTQ = {
    "batch_size": 1,
    "bits": 4,
    "block_name_to_quantize": None,
    "cache_block_outputs": True,
    "checkpoint_format": "gptq",
    "damp_percent": 0.1,
    "dataset": None,
    "desc_act": True,
    "exllama_config": {"version": 1},
    "group_size": 128,
    "lm_head": False,
    "max_input_length": None,
    "meta": {"quantizer": ["gptqmodel:2.2.0"], "static_groups": False},
    "model_seqlen": None,
    "pack_dtype": "int32",
    "quant_method": "gptq",
    "sym": True,
    "tokenizer": None,
    "true_sequential": True,
}
FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}


def compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> Config:
    """As llm-compressor writes it."""
    shared = {"actorder": None, "block_structure": None, "dynamic": False, "observer": "minmax", "observer_kwargs": {}}
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"]}
    return {
        "config_groups": {"group_0": {**group, "weights": {**shared, "symmetric": True, **weights}}},
        "format": form,
        "global_compression_ratio": 1.46,
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.9.4",
    }


W4A16 = compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}, None)
FP8_DYNAMIC = compressed(
    "float-quantized",
    {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None},
    {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
)

PUBLISHED: dict[str, Config] = {
    "Llama 1": {**LLAMA_2, "pad_token_id": -1, "max_sequence_length": 2048, "torch_dtype": "float16"},
    "Llama 2": LLAMA_2,
    "Llama 3": {**LLAMA_3, "rope_scaling": None, "max_position_embeddings": 8192},
    "Llama 3.1": LLAMA_3,
    "Llama 3.2": {**LLAMA_3, "head_dim": 64, "hidden_size": 2048, "tie_word_embeddings": True},
    "Code Llama": {**LLAMA_2, "rope_theta": 1000000, "vocab_size": 32016},
    "TinyLlama": {**LLAMA_2, "hidden_size": 2048, "num_key_value_heads": 4, "max_position_embeddings": 2048},
    "Vicuna": {**LLAMA_2, "rope_scaling": {"factor": 4.0, "type": "linear"}, "max_sequence_length": 16384},
    "Yi": {**LLAMA_2, "rope_theta": 5000000.0, "num_key_value_heads": 4, "vocab_size": 64000},
    "SmolLM2": SMOLLM_2,
    "Mistral 7B 0.1": MISTRAL,
    "Mistral 7B 0.3": {**MISTRAL, "sliding_window": None, "rope_theta": 1000000.0, "vocab_size": 32768},
    "Mistral Nemo": {**MISTRAL, "head_dim": 128, "hidden_size": 5120, "sliding_window": None, "vocab_size": 131072},
    "Ministral 8B": {**MISTRAL, "head_dim": 128, "sliding_window": 32768, "num_hidden_layers": 36},
    "Qwen2": QWEN_2,
    "Qwen2.5": {**QWEN_2, "use_mrope": False},
    "Qwen2.5 with yarn": {
        **QWEN_2,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
    },
    "Qwen3": QWEN_3,
    "Qwen3 of transformers 5": {
        **{key: value for key, value in QWEN_3.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")},
        "dtype": "bfloat16",
        "layer_types": ["full_attention"] * 28,
        "pad_token_id": None,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    },
    "Llama 3.1 of transformers 5": {
        **{key: value for key, value in LLAMA_3.items() if key not in ("rope_theta", "rope_scaling")},
        "rope_parameters": {**LLAMA_3["rope_scaling"], "rope_theta": 500000.0},
    },
    "unsloth": {**LLAMA_3, "unsloth_fixed": True, "unsloth_version": "2024.11.7", "pad_token_id": 128004},
    "axolotl": {**QWEN_2, "_name_or_path": "./out", "_attn_implementation_autoset": True, "use_cache": False},
    "a Qwen made into a Llama": {
        **LLAMA_2,
        "attention_bias": True,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "max_window_layers": 21,
    },
    "a classifier's leftovers": {**LLAMA_3, "id2label": {"0": "bad"}, "label2id": {"bad": 0}, "problem_type": None},
    "a tool's own keys": {
        **MISTRAL,
        "task_specific_params": {"summarization": {"max_length": 128}},
        "neftune_noise_alpha": 5,
        "embd_pdrop": 0.0,
        "layer_norm_eps": 1e-5,
        "num_labels": 1,
        "gradient_checkpointing": False,
        "router_aux_loss_coef": 0.001,
        "temperature": 0.7,
        "custom": {"nested": [1, 2]},
    },
    "a tokenizer of its own": {**LLAMA_3, "auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", None]}},
    "AWQ": {**QWEN_2, "quantization_config": AWQ},
    "GPTQ": {**LLAMA_3, "quantization_config": GPTQ},
    "FP8 in blocks": {**QWEN_3, "quantization_config": FP8},
    "FP8 of a tensor": {**LLAMA_3, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}},
    "compressed tensors of 4 bits": {**LLAMA_3, "quantization_config": W4A16},
    "compressed tensors of 8 bits": {**LLAMA_3, "quantization_config": FP8_DYNAMIC},
    "no architecture, a model type": {key: value for key, value in LLAMA_3.items() if key != "architectures"},
    "every old field of the base class": {
        **LLAMA_2,
        "add_cross_attention": False,
        "bad_words_ids": None,
        "cross_attention_hidden_size": None,
        "do_sample": False,
        "finetuning_task": None,
        "is_decoder": False,
        "is_encoder_decoder": False,
        "output_attentions": False,
        "prefix": None,
        "pruned_heads": {},
        "return_dict": True,
        "sep_token_id": None,
        "tf_legacy_loss": False,
        "tie_encoder_decoder": False,
        "tokenizer_class": None,
        "torchscript": False,
        "use_bfloat16": False,
    },
}
