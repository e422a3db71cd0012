"""Write GGUF files with random weights. Speed does not depend on the values of weights."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

F32 = 0  # GGUF's format number
ALIGNMENT = 32
ROWS_AT_ONCE = 4096
# Ends of names of matrices that stay f32: routers and kernels of convolutions.
FLOATS = ("ffn_gate_inp.weight", "shortconv.conv.weight", "ssm_conv1d.weight")
RATE = "ssm_a"  # the end of the name of a rate at which a state decays

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RandomFormat:
    """A format of blocks that begin with a scale, and with a minimum if it has one, and end with quants."""

    number: int  # GGUF's
    block_weights: int
    block_bytes: int
    scale: float  # of a block: weights have mean 0 and a standard deviation of about 0.02
    minimum: float | None  # None: scales have random signs, or the mean would not be 0, and all tokens would be alike


Q4_0 = RandomFormat(number=2, block_weights=32, block_bytes=18, scale=4.3e-3, minimum=None)
Q8_0 = RandomFormat(number=8, block_weights=32, block_bytes=34, scale=2.7e-4, minimum=None)
Q4_1 = RandomFormat(number=3, block_weights=32, block_bytes=20, scale=4.3e-3, minimum=-3.2e-2)
Q4_K = RandomFormat(number=12, block_weights=256, block_bytes=144, scale=1.2e-4, minimum=9e-4)


def write_random_gguf(into: Path, metadata: Mapping[str, Any], shapes: Mapping[str, Shape], kind: RandomFormat) -> Path:
    """Write the file, unless it exists: matrices are random in that format, or in f32; vectors are ones in f32.

    Rates are -1: a state decays.
    """
    if into.is_file():
        return into
    into.parent.mkdir(parents=True, exist_ok=True)
    partial = into.with_suffix(".partial")
    with partial.open("wb") as file:
        _write_head(file, metadata, shapes, kind)
        rng = np.random.default_rng(0)
        for name, shape in shapes.items():
            for piece in _numbers(shape, _format_of(name, shape, kind), rng):
                file.write((-piece if name.endswith(RATE) else piece).tobytes())
            file.write(bytes(-file.tell() % ALIGNMENT))
    partial.rename(into)
    return into


def _format_of(name: str, shape: Shape, kind: RandomFormat) -> RandomFormat | None:
    """The format of a tensor; None: f32."""
    return None if len(shape) == 1 or name.endswith(FLOATS) else kind


def _num_bytes(shape: Shape, kind: RandomFormat | None) -> int:
    return 4 * prod(shape) if kind is None else prod(shape) // kind.block_weights * kind.block_bytes


def _numbers(shape: Shape, kind: RandomFormat | None, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    if kind is None:
        yield np.ones(shape, "<f4") if len(shape) == 1 else rng.normal(0.0, 0.02, shape).astype("<f4")
        return
    numbers = [kind.scale] if kind.minimum is None else [kind.scale, kind.minimum]
    head = np.array(numbers, "<f2").view(np.uint8)
    for at in range(0, prod(shape[:-1]), ROWS_AT_ONCE):
        num_rows = min(ROWS_AT_ONCE, prod(shape[:-1]) - at)
        blocks = rng.integers(0, 256, (num_rows * shape[-1] // kind.block_weights, kind.block_bytes), np.uint8)
        signs = blocks[:, 1] & 0x80
        blocks[:, : head.size] = head
        if kind.minimum is None:
            blocks[:, 1] |= signs
        yield blocks


def _write_head(file: BinaryIO, metadata: Mapping[str, Any], shapes: Mapping[str, Shape], kind: RandomFormat) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata)))
    for key, value in metadata.items():
        number, raw = _value(value)
        file.write(_string(key) + struct.pack("<I", number) + raw)
    offset = 0
    for name, shape in shapes.items():
        format = _format_of(name, shape, kind)
        number = F32 if format is None else format.number
        file.write(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, offset))
        offset += -(-_num_bytes(shape, format) // ALIGNMENT) * ALIGNMENT
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
