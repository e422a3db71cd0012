"""Small model files, built byte by byte, so that tests can also build invalid ones."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.weights.mapped_file import MappedFile

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

TensorSpec = tuple[str, tuple[int, ...], int, bytes]  # name, dims with the contiguous one first, format number, data


def in_memory(content: bytes, name: str = "model.gguf") -> MappedFile:
    return MappedFile(Path("/models") / name, content, 0)


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind: int, value: Any) -> bytes:
    """A value without its type number. An array is (type of its items, items)."""
    if kind == STRING:
        return gguf_string(value)
    if kind == ARRAY:
        item_kind, items = value
        return struct.pack("<IQ", item_kind, len(items)) + b"".join(gguf_value(item_kind, item) for item in items)
    return struct.pack("<" + NUMBERS[kind], value)


def gguf_bytes(
    metadata: dict[str, tuple[int, Any]],
    tensors: Sequence[TensorSpec] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    offsets: dict[str, int] | None = None,
) -> bytes:
    """Build a GGUF file. `offsets` overrides the offset of a tensor."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, (kind, value) in metadata.items():
        header += gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, value)
    data = b""
    for name, dims, kind, raw in tensors:
        offset = (offsets or {}).get(name, len(data))
        header += gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        data += raw + bytes(-len(raw) % alignment)
    return header + bytes(-len(header) % alignment) + data


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
