"""Write a model that exceeds the CPU caches: a Llama of a billion parameters with random weights in Q4_K.

It has the shapes of Llama-3.2-1B and the tokenizer of another model. Speed does not depend on the values of weights.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from quire.weights.checkpoint import open_checkpoint

NUM_LAYERS, DIM, FEED_FORWARD, NUM_HEADS, NUM_KV_HEADS = 16, 2048, 8192, 32, 8
SHAPE = {
    "llama.block_count": NUM_LAYERS,
    "llama.embedding_length": DIM,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": NUM_HEADS,
    "llama.attention.head_count_kv": NUM_KV_HEADS,
    "llama.rope.dimension_count": DIM // NUM_HEADS,
    "general.size_label": "1B",
    "general.file_type": 14,  # Q4_K
}
KV_DIM = DIM * NUM_KV_HEADS // NUM_HEADS
MATRICES = {  # of a layer: rows, columns
    "attn_q": (DIM, DIM),
    "attn_k": (KV_DIM, DIM),
    "attn_v": (KV_DIM, DIM),
    "attn_output": (DIM, DIM),
    "ffn_gate": (FEED_FORWARD, DIM),
    "ffn_up": (FEED_FORWARD, DIM),
    "ffn_down": (DIM, FEED_FORWARD),
}
F32, Q4_K = 0, 12  # GGUF's format numbers
BLOCK_WEIGHTS, BLOCK_BYTES = 256, 144
SCALE, MINIMUM = 1.2e-4, 9e-4  # of a block: weights have mean 0 and standard deviation of about 0.02
ALIGNMENT = 32
ROWS_AT_ONCE = 4096

Tensor = tuple[str, tuple[int, ...]]  # name, shape; vectors are ones in f32, matrices random in Q4_K


def write_large_model(tokenizer_model: Path, into: Path) -> Path:
    """Write the model with the tokenizer of another one, unless the file exists."""
    if into.is_file():
        return into
    metadata = {**open_checkpoint(tokenizer_model).metadata, **SHAPE}
    tensors = list(_tensors(int(metadata["llama.vocab_size"])))
    into.parent.mkdir(parents=True, exist_ok=True)
    partial = into.with_suffix(".partial")
    with partial.open("wb") as file:
        _write_head(file, metadata, tensors)
        rng = np.random.default_rng(0)
        for _, shape in tensors:
            for piece in _numbers(shape, rng):
                file.write(piece.tobytes())
            file.write(bytes(-file.tell() % ALIGNMENT))
    partial.rename(into)
    return into


def _tensors(vocab_size: int) -> Iterator[Tensor]:
    yield "token_embd.weight", (vocab_size, DIM)
    yield "output_norm.weight", (DIM,)
    for layer in range(NUM_LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (DIM,)
        yield f"blk.{layer}.ffn_norm.weight", (DIM,)
        for name, shape in MATRICES.items():
            yield f"blk.{layer}.{name}.weight", shape


def _num_bytes(shape: tuple[int, ...]) -> int:
    return 4 * shape[0] if len(shape) == 1 else shape[0] * shape[1] // BLOCK_WEIGHTS * BLOCK_BYTES


def _numbers(shape: tuple[int, ...], rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    if len(shape) == 1:
        yield np.ones(shape, "<f4")
        return
    for at in range(0, shape[0], ROWS_AT_ONCE):
        num_rows = min(ROWS_AT_ONCE, shape[0] - at)
        blocks = rng.integers(0, 256, (num_rows * shape[1] // BLOCK_WEIGHTS, BLOCK_BYTES), np.uint8)
        blocks[:, :4] = np.array([SCALE, MINIMUM], "<f2").view(np.uint8)
        yield blocks


def _write_head(file: BinaryIO, metadata: Mapping[str, Any], tensors: list[Tensor]) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        kind, raw = _value(value)
        file.write(_string(key) + struct.pack("<I", kind) + raw)
    offset = 0
    for name, shape in tensors:
        kind = F32 if len(shape) == 1 else Q4_K
        file.write(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset))
        offset += -(-_num_bytes(shape) // ALIGNMENT) * ALIGNMENT
    file.write(bytes(-file.tell() % ALIGNMENT))


def _value(value: Any) -> tuple[int, bytes]:
    """Return GGUF's type number and the encoded value."""
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _string(value)
        case [int(), *_]:
            return 9, struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
        case _:
            return 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(_string, value))


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw
