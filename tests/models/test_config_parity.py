"""Config files as users edit them give the same logits as transformers with the same weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from quire.models.draw import draw
from quire.ops.registry import relative_error
from quire.weights.checkpoint import open_checkpoint
from tests.models.case import TOKENS
from tests.models.toys import MemoryCheckpoint, Session, make_toy, some_tokens, toy_with_config_file

pytestmark = pytest.mark.device

NEW = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
LINEAR = {"rope_scaling": {"type": "linear", "factor": 4.0}}
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 12, "sliding_window": 7, "num_hidden_layers": 3}
FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 3.5, 4.5]}
SU = {"type": "su", "original_max_position_embeddings": 64, **FACTORS}
WINDOW_KINDS = ["full_attention", "sliding_attention"]

EDITED: dict[str, tuple[str, dict[str, Any]]] = {
    "rope_scaling beside rope_parameters": ("Llama", NEW | LINEAR),
    "rope_scaling and rope_theta beside rope_parameters": ("Qwen3", NEW | YARN | {"rope_theta": 5e5, "head_dim": 8}),
    "an empty rope_scaling beside rope_parameters": ("Llama", NEW | {"rope_scaling": {}}),
    "rope_theta beside rope_parameters": ("Qwen2", NEW | {"rope_theta": 5e5}),
    "the original context beside rope_scaling": ("Llama", YARN | {"original_max_position_embeddings": 16}),
    "yarn whose factor is null": ("Mistral", {"rope_scaling": {**YARN["rope_scaling"], "factor": None}}),
    "yarn with zero for a default": ("Llama", {"rope_scaling": {**YARN["rope_scaling"], "beta_fast": 0}}),
    "yarn with both mscales": (
        "Llama",
        {"rope_scaling": {**YARN["rope_scaling"], "mscale": 1.0, "mscale_all_dim": 0.7}},
    ),
    "yarn that is not truncated": ("Llama", {"rope_scaling": {**YARN["rope_scaling"], "truncate": None}}),
    "llama3 without an original context": ("Llama", {"rope_scaling": LLAMA3}),
    "keys of another kind of rope": ("Llama", {"rope_scaling": {**LLAMA3, "rope_type": "linear", "beta_fast": 3}}),
    "a window on Llama": ("Llama", {"sliding_window": 8}),
    "layer types on Llama": ("Llama", {"layer_types": ["full_attention"] * 2}),
    "Qwen's switch on Mistral": ("Mistral", {"sliding_window": 8, "use_sliding_window": False}),
    "Qwen's first layers on Mistral": ("Mistral", {"sliding_window": 8, "max_window_layers": 1}),
    "layer types on Mistral": ("Mistral", {"sliding_window": 8, "layer_types": ["sliding_attention"] * 2}),
    "Qwen's window with its switch off": ("Qwen3", {"sliding_window": 8, "max_window_layers": 0, "head_dim": 8}),
    "layer types on Qwen": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "layer_types": WINDOW_KINDS},
    ),
    "the old name of full attention": ("Qwen2", {"layer_types": ["attention"] * 2}),
    "the head's size on Qwen2": ("Qwen2", {"head_dim": 12}),
    "biases on Mistral": ("Mistral", {"attention_bias": True, "mlp_bias": True}),
    "biases on Qwen2": ("Qwen2", {"attention_bias": True, "mlp_bias": True}),
    "biases on Qwen3": ("Qwen3", {"attention_bias": True, "mlp_bias": True, "head_dim": 8}),
    "cut matrices": ("Llama", {"pretraining_tp": 2, "chunk_size_feed_forward": 3, "attention_dropout": 0.5}),
    "the other name of silu": ("Llama", {"hidden_act": "swish"}),
    # as files were written before transformers 5
    "gelu on Gemma": ("Gemma", {"head_dim": 16, "hidden_act": "gelu", "hidden_activation": None}),
    "no layer types on Gemma 2": ("Gemma2", GEMMA),
    "no layer types on VaultGemma": ("VaultGemma", GEMMA),
    "no rope on Gemma 3": ("Gemma3", GEMMA | {"num_hidden_layers": 6}),
    "a pattern, a local theta and a scaled rope on Gemma 3": (
        "Gemma3",
        {**GEMMA, "sliding_window_pattern": 2, "rope_theta": 5e5, "rope_local_base_freq": 5000.0,
         "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "no layer types, no rope and global sizes on Gemma 4": (
        "Gemma4",
        {"head_dim": 8, "global_head_dim": 16, "sliding_window": 7, "num_hidden_layers": 8, "attention_k_eq_v": True,
         "num_global_key_value_heads": 3, "hidden_size_per_layer_input": 0},
    ),
    "a window in the last layer of Gemma 4": (
        "Gemma4",
        {"head_dim": 8, "global_head_dim": 16, "sliding_window": 7, "layer_types": ["sliding_attention"] * 2,
         "vocab_size_per_layer_input": 131, "num_global_key_value_heads": 1},
    ),
    "no layer types and a scaled rope on OLMo 3": (
        "Olmo3", YARN | {"sliding_window": 7, "num_hidden_layers": 4, "rope_theta": 5e4},
    ),
    "a pattern on Cohere 2": (
        "Cohere2",
        {"sliding_window": 7, "sliding_window_pattern": 2, "rope_theta": 5e4, "rotary_pct": 1.0, **TOKENS,
         "position_embedding_type": "rope_gptj", "layer_norm_eps": 1e-4},
    ),
    "a window on SmolLM3": (
        "SmolLM3", {"use_sliding_window": True, "sliding_window": 7, "no_rope_layer_interval": 2, "layer_types": None,
                    **TOKENS},
    ),
    "a part of the head on Phi": ("Phi", {"partial_rotary_factor": 0.25, "layer_norm_eps": 1e-4}),
    "a part of the head on GLM": ("Glm", {"partial_rotary_factor": 0.25, "head_dim": 16, **TOKENS}),
    "the first name of longrope on Phi-3": (
        "Phi3", {"max_position_embeddings": 64, "original_max_position_embeddings": 64, "rope_scaling": SU, **TOKENS},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EDITED)
def test_an_edited_config_file_gives_the_logits_of_transformers(case):
    family, keys = EDITED[case]
    toy, tokens = toy_with_config_file(f"{family}ForCausalLM", keys), some_tokens(40)
    actual = Session(toy.draw()).step({"a": tokens})["a"]
    assert relative_error(actual, toy.expected_logits(tokens)) < 1e-4


@pytest.fixture(scope="module")
def tied_arrays() -> dict[str, np.ndarray]:
    """Weights of a model whose head is not its embedding table."""
    return {name: tensor.array for name, tensor in make_toy("llama").checkpoint.tensors.items()}


def save(folder: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A checkpoint whose config.json says that the head is the embedding table."""
    pytest.importorskip("safetensors.numpy").save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    config = {**make_toy("llama").checkpoint.metadata, "tie_word_embeddings": True, "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return folder


HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


@pytest.mark.parametrize(
    "stored", ["both, different", "both, one row different", "both, equal", "the table", "the head"]
)
def test_a_tied_checkpoint_is_read_as_transformers_reads_it(stored, tied_arrays, tmp_path):
    arrays = dict(tied_arrays)
    if stored == "both, equal":
        arrays[HEAD] = arrays[TABLE].copy()
    elif stored == "both, one row different":
        arrays[HEAD] = arrays[TABLE].copy()
        arrays[HEAD][-1] *= -1
    elif stored != "both, different":
        del arrays[HEAD if stored == "the table" else TABLE]
    reference = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained(save(tmp_path, arrays))
    model, tokens = draw(open_checkpoint(tmp_path)), some_tokens(20)
    expected = type(make_toy("llama"))(reference.eval(), MemoryCheckpoint("", {}, {})).expected_logits(tokens)
    assert relative_error(Session(model).step({"a": tokens})["a"], expected) < 1e-4
    is_tied = "different" not in stored
    assert model.config.tied == is_tied and (model.weights["head"] is model.weights["embed"]) == is_tied
