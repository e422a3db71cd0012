"""A random BERT in a sentence-transformers folder, with a vocabulary of numbered words, for benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from quire.bench.engines.encoder_shapes import EncoderShape, encoder_config

NUM_WORDS = 20_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_encoder(folder: Path, shape: EncoderShape) -> Path:
    """Write the folder, unless it is there."""
    if (folder / "modules.json").is_file():
        return folder
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    vocab_size = len(SPECIAL) + NUM_WORDS
    _write_json(folder / "config.json", encoder_config(shape, vocab_size))
    _write_json(
        folder / "1_Pooling" / "config.json", {"pooling_mode": "mean", "word_embedding_dimension": shape.hidden}
    )
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]",
                                                   "model_max_length": 512})  # fmt: skip
    _write_tokenizer(folder / "tokenizer.json")
    _write_tensors(folder / "model.safetensors", _tensors(shape, vocab_size))
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    _write_json(folder / "modules.json", modules)
    return folder


def _tensors(shape: EncoderShape, vocab_size: int) -> dict[str, NDArray[Any]]:
    rng, hidden = np.random.default_rng(0), shape.hidden
    sizes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (vocab_size, hidden),
        "embeddings.position_embeddings.weight": (512, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    square, wide = (hidden, hidden), (shape.ffn, hidden)
    for layer in range(shape.num_layers):
        parts = {f"attention.self.{word}": square for word in ("query", "key", "value")}
        parts |= {"attention.output.dense": square, "intermediate.dense": wide, "output.dense": wide[::-1]}
        parts |= {"attention.output.LayerNorm": (hidden,), "output.LayerNorm": (hidden,)}  # type: ignore[dict-item]
        for name, size in parts.items():
            sizes |= {f"encoder.layer.{layer}.{name}.weight": size, f"encoder.layer.{layer}.{name}.bias": size[:1]}
    return {
        name: np.ones(size, np.float32) if name.endswith("LayerNorm.weight") else
        rng.standard_normal(size, dtype=np.float32) * np.float32(0.04)
        for name, size in sizes.items()
    }  # fmt: skip


def _write_tensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in tensors.values():
            file.write(array.tobytes())


def _write_tokenizer(path: Path) -> None:
    words = (*SPECIAL, *(f"w{number}" for number in range(NUM_WORDS)))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(path))


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
