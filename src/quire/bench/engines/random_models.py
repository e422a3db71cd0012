"""Models with random weights in the shapes of public models: a folder with a config.json and no weights."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from quire.models.draw import draw
from quire.weights.checkpoint import open_checkpoint

LOAD_FORMAT = "dummy"  # the setting load_format with which such a folder is loaded


def _llama(hidden: int, ffn: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 128001,
    }


QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
}
GEMMA3_4B = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "rms_norm_eps": 1e-6,
    "sliding_window": 1024,
    "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(34)],
    "query_pre_attn_scalar": 256,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}
PHI4_MINI = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "vocab_size": 200064,
    "rms_norm_eps": 1e-5,
    "original_max_position_embeddings": 4096,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0] * 48,
        "long_factor": [1.0 + 0.5 * i for i in range(48)],
    },
    "sliding_window": 262144,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 199999,
    "pad_token_id": 199999,
}
OLMO2_7B = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 100352,
    "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 100257,
}
QWEN3_30B_A3B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 151645,
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
    "vocab_size": 102400,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 100001,
}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "sliding_window": 128,
    "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(24)],
    "swiglu_limit": 7.0,
    "attention_bias": True,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 200002,
    "pad_token_id": 199999,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}
QWEN3_5_9B = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(32)],
    "attn_output_gate": True,
    "vocab_size": 248320,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 248044,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama8b": _llama(4096, 14336, 32, 32),
    "llama70b": _llama(8192, 28672, 80, 64),
    "tiny": _llama(1024, 1024, 2, 8),
    "qwen3-4b": QWEN3_4B,
    "gemma3-4b": GEMMA3_4B,
    "phi4-mini": PHI4_MINI,
    "olmo2-7b": OLMO2_7B,
    "qwen3-30b-a3b": QWEN3_30B_A3B,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
    "gpt-oss-20b": GPT_OSS_20B,
    "qwen3.5-9b": QWEN3_5_9B,
}
COMMON = {"max_position_embeddings": 131072, "torch_dtype": "bfloat16", "initializer_range": 0.02}


def write_config(folder: Path, shape: str) -> None:
    """Write the config.json of one of SHAPES."""
    Path(folder, "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))


class MultipliedWeights(NamedTuple):
    """How many weights tokens are multiplied with, the head included."""

    shared: int  # by all tokens
    of_experts: int = 0  # of all experts of all layers
    num_experts: int = 1  # of a layer
    top: int = 1  # that a token chooses
    expert_bytes: int = 0  # of all experts of all layers, as they are stored

    @property
    def of_a_token(self) -> int:
        """Weights that one token is multiplied with."""
        return self.shared + self.of_experts * self.top // self.num_experts

    def distinct_experts(self, num_tokens: float) -> float:
        """Return how many experts of a layer so many tokens choose, if all are equally likely."""
        return self.num_experts * (1 - (1 - self.top / self.num_experts) ** num_tokens)

    def read(self, num_tokens: float) -> float:
        """Return how many weights a step of so many tokens reads."""
        return self.shared + self.of_experts * self.distinct_experts(num_tokens) / self.num_experts


def multiplied_weights(folder: Path, pooling: str | None = None) -> MultipliedWeights:
    """Count the weights of a random model. `pooling`: of an encoder."""
    model = draw(open_checkpoint(folder, LOAD_FORMAT), pooling=pooling)
    graph = model.graph

    def names(op: str, *words: str) -> set[str]:
        found = {node.weights[word] for node in graph.nodes if node.op.name == op for word in words}
        return {str(name) for name in found if name is not None}

    def count(op: str, *words: str) -> int:
        return sum(prod(int(size) for size in graph.shapes[name]) for name in names(op, *words))

    shared = count("linear", "weight") + count("route", "weight") + count("attention_latent", "keys", "values")
    route = next((node for node in graph.nodes if node.op.name == "route"), None)
    if route is None:
        return MultipliedWeights(shared)
    num_experts = int(graph.shapes[str(route.weights["weight"])][0])
    stacks = ("experts", "gate", "up", "down")
    expert_bytes = sum(model.weights[name].num_bytes for name in names(*stacks))
    return MultipliedWeights(shared, count(*stacks), num_experts, route.attrs["top"], expert_bytes)
