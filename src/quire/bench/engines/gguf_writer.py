"""Write GGUF files: metadata, descriptions of tensors, and their bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

ALIGNMENT = 32

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """The description of a tensor."""

    shape: Shape
    number: int  # GGUF's, of its format
    num_bytes: int


def write_gguf(
    into: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, GgufTensor],
    numbers: Callable[[str], Iterable[NDArray[Any]]],
) -> Path:
    """Write the file, unless it exists. `numbers` returns the pieces of a tensor by its name."""
    if into.is_file():
        return into
    into.parent.mkdir(parents=True, exist_ok=True)
    partial = into.with_suffix(".partial")
    with partial.open("wb") as file:
        _write_head(file, metadata, tensors)
        for name in tensors:
            for piece in numbers(name):
                file.write(piece.data)
            file.write(bytes(-file.tell() % ALIGNMENT))
    partial.rename(into)
    return into


def _write_head(file: BinaryIO, metadata: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        number, raw = _value(value)
        file.write(_string(key) + struct.pack("<I", number) + raw)
    offset = 0
    for name, tensor in tensors.items():
        sizes = tuple(reversed(tensor.shape))
        file.write(_string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, tensor.number, offset))
        offset += -(-tensor.num_bytes // ALIGNMENT) * ALIGNMENT
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
        case [float(), *_]:
            return 9, struct.pack("<IQ", 6, len(value)) + struct.pack(f"<{len(value)}f", *value)
        case [int(), *_]:
            return 9, struct.pack("<IQ", 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
        case _:
            return 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(_string, value))


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw
