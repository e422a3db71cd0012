"""A random BERT of a sentence-transformers folder as a GGUF file in float32, for llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.bench.engines.encoder_model import NUM_WORDS, SPECIAL
from quire.bench.engines.encoder_shapes import LONGEST, EncoderShape
from quire.bench.engines.gguf_writer import GgufTensor, write_gguf
from quire.bench.engines.onnx_encoder_driver import EPSILON, read_tensors

F32 = 0  # GGUF's number of the format
NORMAL, CONTROL = 1, 3  # types of tokens
MEAN = 1  # pooling
NAMES = {  # the folder's names, and GGUF's
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def write_encoder_gguf(folder: Path, shape: EncoderShape) -> Path:
    """Write the file into the folder, unless it is there."""
    arrays = {_gguf_name(name): array for name, array in read_tensors(folder / "model.safetensors").items()}
    tensors = {name: GgufTensor(array.shape, F32, array.nbytes) for name, array in arrays.items()}

    def numbers(name: str) -> list[NDArray[Any]]:
        return [np.ascontiguousarray(arrays[name])]

    return write_gguf(folder / "model.gguf", _metadata(shape), tensors, numbers)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("encoder.layer."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def _metadata(shape: EncoderShape) -> Mapping[str, Any]:
    tokens = [*SPECIAL, *(f"\u2581w{number}" for number in range(NUM_WORDS))]  # a word's beginning is marked
    sizes: dict[str, Any] = {
        "context_length": LONGEST,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "block_count": shape.num_layers,
        "attention.head_count": shape.num_heads,
        "attention.layer_norm_epsilon": EPSILON,
        "attention.causal": False,
        "pooling_type": MEAN,
    }
    text: dict[str, Any] = {
        "model": "bert",
        "pre": "default",
        "tokens": tokens,
        "token_type": [CONTROL] * len(SPECIAL) + [NORMAL] * NUM_WORDS,
        "token_type_count": 2,
    }
    marks = {"padding": 0, "unknown": 1, "cls": 2, "bos": 2, "seperator": 3, "eos": 3, "mask": 4}  # GGUF's spelling
    return {
        "general.architecture": "bert",
        "general.file_type": F32,
        **{f"bert.{key}": value for key, value in sizes.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in text.items()},
        **{f"tokenizer.ggml.{key}_token_id": value for key, value in marks.items()},
    }
