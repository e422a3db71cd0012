"""Write GGUF files with random weights. Speed does not depend on the values of weights."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

F32 = 0  # GGUF's format number
ALIGNMENT = 32
ROWS_AT_ONCE = 4096

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RandomFormat:
    """A format of blocks that begin with a scale and a minimum and end with quants of 4 bits."""

    number: int  # GGUF's
    block_weights: int
    block_bytes: int
    scale: float  # of a block: weights have mean 0 and a standard deviation of about 0.02
    minimum: float


Q4_1 = RandomFormat(number=3, block_weights=32, block_bytes=20, scale=4.3e-3, minimum=-3.2e-2)
Q4_K = RandomFormat(number=12, block_weights=256, block_bytes=144, scale=1.2e-4, minimum=9e-4)


def write_random_gguf(into: Path, metadata: Mapping[str, Any], shapes: Mapping[str, Shape], kind: RandomFormat) -> Path:
    """Write the file, unless it exists: matrices are random in that format, vectors are ones in f32."""
    if into.is_file():
        return into
    into.parent.mkdir(parents=True, exist_ok=True)
    partial = into.with_suffix(".partial")
    with partial.open("wb") as file:
        _write_head(file, metadata, shapes, kind)
        rng = np.random.default_rng(0)
        for shape in shapes.values():
            for piece in _numbers(shape, kind, rng):
                file.write(piece.tobytes())
            file.write(bytes(-file.tell() % ALIGNMENT))
    partial.rename(into)
    return into


def _num_bytes(shape: Shape, kind: RandomFormat) -> int:
    return 4 * shape[0] if len(shape) == 1 else shape[0] * shape[1] // kind.block_weights * kind.block_bytes


def _numbers(shape: Shape, kind: RandomFormat, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    if len(shape) == 1:
        yield np.ones(shape, "<f4")
        return
    for at in range(0, shape[0], ROWS_AT_ONCE):
        num_rows = min(ROWS_AT_ONCE, shape[0] - at)
        blocks = rng.integers(0, 256, (num_rows * shape[1] // kind.block_weights, kind.block_bytes), np.uint8)
        blocks[:, :4] = np.array([kind.scale, kind.minimum], "<f2").view(np.uint8)
        yield blocks


def _write_head(file: BinaryIO, metadata: Mapping[str, Any], shapes: Mapping[str, Shape], kind: RandomFormat) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata)))
    for key, value in metadata.items():
        number, raw = _value(value)
        file.write(_string(key) + struct.pack("<I", number) + raw)
    offset = 0
    for name, shape in shapes.items():
        number = F32 if len(shape) == 1 else kind.number
        file.write(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, offset))
        offset += -(-_num_bytes(shape, kind) // ALIGNMENT) * ALIGNMENT
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
