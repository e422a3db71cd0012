"""Models with random weights in the shapes of public models: a folder with a config.json and no weights."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

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
SHAPES: dict[str, dict[str, Any]] = {
    "llama8b": _llama(4096, 14336, 32, 32),
    "llama70b": _llama(8192, 28672, 80, 64),
    "tiny": _llama(1024, 1024, 2, 8),
    "qwen3-4b": QWEN3_4B,
    "gemma3-4b": GEMMA3_4B,
    "phi4-mini": PHI4_MINI,
    "olmo2-7b": OLMO2_7B,
}
COMMON = {"max_position_embeddings": 131072, "torch_dtype": "bfloat16", "initializer_range": 0.02}


def write_config(folder: Path, shape: str) -> None:
    """Write the config.json of one of SHAPES."""
    Path(folder, "config.json").write_text(json.dumps(COMMON | SHAPES[shape]))


def num_multiplied(folder: Path) -> int:
    """Return how many weights a token is multiplied with: all matrices, the head included."""
    graph = draw(open_checkpoint(folder, LOAD_FORMAT)).graph
    names = {node.weights["weight"] for node in graph.nodes if node.op.name == "linear"}
    return sum(prod(int(size) for size in graph.shapes[str(name)]) for name in names)
