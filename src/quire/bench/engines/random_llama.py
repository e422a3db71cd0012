"""Llama models with random weights in the shapes of public models: a folder with a config.json and no weights."""

from __future__ import annotations

import json
from pathlib import Path

SHAPES: dict[str, dict[str, int]] = {
    "llama8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "tiny": {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8},
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "initializer_range": 0.02,
}
LOAD_FORMAT = "dummy"  # the setting load_format with which such a folder is loaded


def write_config(folder: Path, shape: str) -> None:
    """Write the config.json of one of SHAPES."""
    Path(folder, "config.json").write_text(json.dumps(CONFIG | SHAPES[shape]))
