"""safetensors files: u64 length of the header, the header (JSON), the data.

The header maps each tensor to its dtype, shape and [begin, end) in the data, which the tensors fill without holes.
"""

from __future__ import annotations

import json
from pathlib import Path
from struct import Struct
from typing import Any, TypeGuard

from quire.quant.registry import safetensors_formats

from .container import Container, Tensor, tensor_at
from .errors import CorruptCheckpoint, TruncatedCheckpoint, UnsupportedCheckpoint
from .mapped_file import MappedFile

U64 = Struct("<Q")
MAX_HEADER_BYTES = 100_000_000  # the format's limit: with a larger length, the file is not safetensors


def read_safetensors(file: MappedFile) -> Container:
    """Return the file's tensors. Reads the header only."""
    if file.num_bytes < U64.size:
        raise TruncatedCheckpoint(file.path, "it ends inside its header")
    (header_bytes,) = U64.unpack_from(file.buffer, 0)
    data_start = U64.size + header_bytes
    if header_bytes > MAX_HEADER_BYTES:
        raise CorruptCheckpoint(file.path, "it does not begin with the length of a safetensors header")
    if data_start > file.num_bytes:
        raise TruncatedCheckpoint(
            file.path, f"its header should have {header_bytes:,} bytes, but the file has {file.num_bytes:,}"
        )
    header = parse_object(file.path, file.buffer[U64.size : data_start], "its header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CorruptCheckpoint(file.path, "its __metadata__ is not an object")
    places = [(_read_range(file.path, name, entry), name, entry) for name, entry in header.items()]
    tensors: dict[str, Tensor] = {}
    end = 0
    for (begin, stop), name, entry in sorted(places, key=lambda place: (place[0], place[1])):
        if begin != end:
            problem = "overlaps the one before it" if begin < end else "leaves a hole before it"
            raise CorruptCheckpoint(file.path, f"tensor {name!r} {problem}")
        tensors[name] = _place(file, name, entry, data_start + begin)
        if tensors[name].num_bytes != stop - begin:
            raise CorruptCheckpoint(
                file.path,
                f"tensor {name!r} has {stop - begin:,} bytes, and its shape needs {tensors[name].num_bytes:,}",
            )
        end = stop
    if data_start + end != file.num_bytes:
        raise CorruptCheckpoint(file.path, f"it has {file.num_bytes - data_start - end:,} bytes after its last tensor")
    return Container(file, data_start, metadata, {name: tensors[name] for name in header})


def parse_object(path: Path, text: bytes | str, what: str) -> dict[str, Any]:
    """Parse a JSON object without duplicate keys."""
    value = _parse(path, text, what)
    if not isinstance(value, dict):
        raise CorruptCheckpoint(path, f"{what} is not a JSON object")
    return value


def parse_list(path: Path, text: str | bytes, what: str) -> list[Any]:
    """Parse a JSON list from a file; `what` names it in errors."""
    value = _parse(path, text, what)
    if not isinstance(value, list):
        raise CorruptCheckpoint(path, f"{what} is not a JSON list")
    return value


def _parse(path: Path, text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of 10,000 digits, nested too deeply
        raise CorruptCheckpoint(path, f"{what} is not valid JSON ({_reason(error)})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("duplicate key")
    return value


def _reason(error: Exception) -> str:
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)[:100]


def _read_range(path: Path, name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptCheckpoint(path, f"tensor {name!r} has no valid data_offsets in the header")
    return offsets[0], offsets[1]


def _place(file: MappedFile, name: str, entry: dict[str, Any], start: int) -> Tensor:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or not _are_sizes(shape):
        raise CorruptCheckpoint(file.path, f"tensor {name!r} has no valid dtype and shape in the header")
    fmt = safetensors_formats().get(dtype)
    if fmt is None:
        supported = ", ".join(safetensors_formats())
        raise UnsupportedCheckpoint(
            file.path,
            f"tensor {name!r} has the dtype {dtype[:40]!r}, which Quire does not read",
            f"Get the model in one of the dtypes {supported}.",
        )
    return tensor_at(file, name, fmt, tuple(shape), start)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether the value is a list of non-negative integers; JSON's true and 1.0 are not."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
