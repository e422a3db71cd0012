"""GGUF files, versions 2 and 3, little endian.

magic "GGUF" · u32 version · u64 number of tensors · u64 number of keys
keys      string key, u32 type, value
tensors   string name, u32 number of dims, u64 dims (the contiguous one first), u32 format, u64 offset
padding to the alignment (key general.alignment, else 32), then the data: offsets count from here, each one aligned
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct

from quire.quant.registry import gguf_formats

from .container import Container, Tensor, tensor_at
from .errors import CorruptCheckpoint, TruncatedCheckpoint, UnsupportedCheckpoint
from .gguf_metadata import U32, U64, Cursor, GGUFMetadata, StoredArray, Value
from .mapped_file import MappedFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4  # of ggml
PLACEMENTS = [Struct(f"<{num_dims}QIQ") for num_dims in range(MAX_DIMS + 1)]  # dims, format number, offset
HEADER_BYTES = 24
SMALLEST_KEY = 8 + 4 + 1
SMALLEST_TENSOR = 8 + 4 + 4 + 8


def read_gguf(file: MappedFile) -> Container:
    """Return the file's metadata and tensors. Reads the header only, and decodes arrays when they are accessed."""
    cursor = Cursor(file, 0, "its header")
    num_tensors, num_keys = _read_counts(cursor)
    values = _read_metadata(cursor, num_keys)
    descriptions = [_read_description(cursor, i) for i in range(num_tensors)]
    alignment = _alignment(file, values)
    data_start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    starts: list[tuple[int, Tensor]] = []
    for name, shape, kind, offset in descriptions:
        if name in tensors:
            raise CorruptCheckpoint(file.path, f"it has two tensors called {name!r}")
        if offset % alignment:
            raise CorruptCheckpoint(file.path, f"tensor {name!r} is not aligned to {alignment} bytes")
        tensors[name] = _place(file, name, shape, kind, data_start + offset)
        starts.append((offset, tensors[name]))
    _check_overlap(file, starts)
    return Container(file, min(data_start, file.num_bytes), GGUFMetadata(values), tensors)


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    file = cursor.file
    if file.buffer[:4] != MAGIC:
        raise CorruptCheckpoint(file.path, "it does not begin with the letters GGUF")
    if file.num_bytes < HEADER_BYTES:
        raise TruncatedCheckpoint(file.path, "it ends inside its header")
    cursor.advance(4)
    version = cursor.number(U32)
    if version not in VERSIONS:
        if version & 0xFFFF == 0 and version:
            problem, advice = "it is big endian", "Get the little-endian file of this model: almost all files are."
        else:
            problem, advice = f"it is GGUF version {version}", "Quire reads versions 2 and 3: get a newer file."
        raise UnsupportedCheckpoint(file.path, problem, advice)
    num_tensors, num_keys = cursor.number(U64), cursor.number(U64)
    if num_keys * SMALLEST_KEY + num_tensors * SMALLEST_TENSOR > file.num_bytes - cursor.at:
        raise TruncatedCheckpoint(
            file.path, f"its header counts {num_tensors:,} tensors and {num_keys:,} keys, more than the file can hold"
        )
    return num_tensors, num_keys


def _read_metadata(cursor: Cursor, num_keys: int) -> dict[str, Value | StoredArray]:
    values: dict[str, Value | StoredArray] = {}
    for i in range(num_keys):
        cursor.what = f"metadata key {i + 1} of {num_keys}"
        key = cursor.string()
        if key in values:
            raise CorruptCheckpoint(cursor.file.path, f"it has the metadata key {key!r} twice")
        cursor.what = f"the value of the metadata key {key!r}"
        values[key] = cursor.value()
    return values


def _read_description(cursor: Cursor, i: int) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, shape in row-major order, format number, offset."""
    cursor.what = f"the description of tensor {i + 1}"
    name = cursor.string()
    cursor.what = f"the description of tensor {name!r}"
    num_dims = cursor.number(U32)
    if num_dims > MAX_DIMS:
        raise CorruptCheckpoint(cursor.file.path, f"tensor {name!r} has {num_dims} dimensions, more than {MAX_DIMS}")
    *dims, kind, offset = cursor.numbers(PLACEMENTS[num_dims])
    return name, tuple(dims[::-1]), kind, offset


def _alignment(file: MappedFile, values: dict[str, Value | StoredArray]) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise CorruptCheckpoint(file.path, "the metadata key 'general.alignment' is not a power of two")
    return alignment


def _place(file: MappedFile, name: str, shape: tuple[int, ...], kind: int, start: int) -> Tensor:
    fmt = gguf_formats().get(kind)
    if fmt is None:
        supported = ", ".join(f.name for f in gguf_formats().values())
        raise UnsupportedCheckpoint(
            file.path,
            f"tensor {name!r} has the format number {kind}, which Quire does not read",
            f"Get the model in one of the formats {supported}.",
        )
    return tensor_at(file, name, fmt, shape, start)


def _check_overlap(file: MappedFile, starts: list[tuple[int, Tensor]]) -> None:
    starts = sorted((item for item in starts if item[1].num_bytes), key=lambda item: item[0])
    for (start, tensor), (next_start, next_tensor) in pairwise(starts):
        if start + tensor.num_bytes > next_start:
            raise CorruptCheckpoint(file.path, f"tensors {tensor.name!r} and {next_tensor.name!r} overlap")
