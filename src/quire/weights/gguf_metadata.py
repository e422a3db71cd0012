"""The typed values in a GGUF header. Arrays are skipped when a file is opened and decoded at first access: the
vocabulary is most of the header, and many callers never need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .errors import CorruptCheckpoint, TruncatedCheckpoint
from .mapped_file import MappedFile
from .string_array import decode_strings, string_offsets

if TYPE_CHECKING:
    from numpy.typing import NDArray

Value: TypeAlias = bool | int | float | str | tuple[Any, ...]

U8, U32, U64 = Struct("<B"), Struct("<I"), Struct("<Q")
BOOL, STRING, ARRAY = 7, 8, 9  # the value types that are not plain numbers
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
SCALARS = {kind: Struct(code) for kind, code in NUMBERS.items()}
DTYPES = {BOOL: np.dtype("|u1")} | {kind: np.dtype(code) for kind, code in NUMBERS.items()}
MAX_NESTING = 8
SMALLEST_ARRAY = U32.size + U64.size


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """An array that is not decoded yet: of numbers (`numbers`), of strings (`offsets`) or of arrays (`arrays`)."""

    file: MappedFile
    what: str
    numbers: NDArray[Any] | None = None
    is_bool: bool = False
    offsets: NDArray[np.int64] | None = None  # of each string's length field, and of the end
    arrays: tuple[StoredArray, ...] = ()

    def decode(self) -> tuple[Any, ...]:
        if self.numbers is not None:
            return self._decode_numbers(self.numbers)
        if self.offsets is not None:
            return self._decode_strings(self.offsets)
        return tuple(array.decode() for array in self.arrays)

    def _decode_numbers(self, numbers: NDArray[Any]) -> tuple[Any, ...]:
        if not self.is_bool:
            return tuple(numbers.tolist())
        if (numbers > 1).any():
            raise CorruptCheckpoint(self.file.path, f"{self.what} has a boolean that is neither 0 nor 1")
        return tuple((numbers != 0).tolist())

    def _decode_strings(self, offsets: NDArray[np.int64]) -> tuple[str, ...]:
        try:
            return decode_strings(self.file, offsets)
        except UnicodeDecodeError as error:
            raise CorruptCheckpoint(self.file.path, f"{self.what} has a string that is not UTF-8") from error


class GGUFMetadata(Mapping[str, Value]):
    """Key to value; an array is a tuple. Arrays are decoded at first access and cached."""

    def __init__(self, values: dict[str, Value | StoredArray]) -> None:
        self._values = values  # only __getitem__ changes it: it replaces a StoredArray by its tuple

    def __getitem__(self, key: str) -> Value:
        value = self._values[key]
        if isinstance(value, StoredArray):
            value = self._values[key] = value.decode()
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"GGUFMetadata({len(self)} keys)"


class Cursor:
    """Reads the header from start to end. `what` describes the item being read, for error messages."""

    def __init__(self, file: MappedFile, at: int, what: str) -> None:
        self.file = file
        self.at = at
        self.end = file.num_bytes
        self.what = what

    def advance(self, num_bytes: int) -> int:
        """Skip `num_bytes` and return where they begin. Raises if the file ends before."""
        start = self.at
        self.at = start + num_bytes
        if self.at > self.end:
            raise TruncatedCheckpoint(self.file.path, f"it ends inside {self.what}")
        return start

    def numbers(self, layout: Struct) -> tuple[Any, ...]:
        return layout.unpack_from(self.file.buffer, self.advance(layout.size))

    def number(self, layout: Struct) -> Any:
        return self.numbers(layout)[0]

    def string(self) -> str:
        start = self.advance(self.number(U64))
        try:
            return str(self.file.buffer[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptCheckpoint(self.file.path, f"{self.what} is not UTF-8") from error

    def value(self) -> Value | StoredArray:
        """Read a type number and a value of that type."""
        kind = self.number(U32)
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        if kind == BOOL:
            byte = self.number(U8)
            if byte > 1:
                raise CorruptCheckpoint(self.file.path, f"{self.what} is neither true nor false")
            return bool(byte)
        if kind not in SCALARS:
            raise self._unknown(kind)
        return self.number(SCALARS[kind])

    def array(self, depth: int = 1) -> StoredArray:
        kind, count = self.number(U32), self.number(U64)
        if kind in DTYPES:
            dtype = DTYPES[kind]
            start = self.advance(count * dtype.itemsize)
            numbers = self.file.data[start : self.at].view(dtype)
            return StoredArray(self.file, self.what, numbers=numbers, is_bool=kind == BOOL)
        if kind == STRING:
            self._expect(count, U64.size)
            offsets = string_offsets(self.file, self.at, count)
            if len(offsets) != count + 1:
                raise TruncatedCheckpoint(self.file.path, f"it ends inside {self.what}")
            self.at = int(offsets[-1])
            return StoredArray(self.file, self.what, offsets=offsets)
        if kind == ARRAY and depth < MAX_NESTING:
            self._expect(count, SMALLEST_ARRAY)
            return StoredArray(self.file, self.what, arrays=tuple(self.array(depth + 1) for _ in range(count)))
        raise self._unknown(kind)

    def _expect(self, count: int, smallest: int) -> None:
        """Raise if the rest of the file cannot hold `count` items, before anything is allocated."""
        if count * smallest > self.end - self.at:
            raise TruncatedCheckpoint(self.file.path, f"it ends inside {self.what}, which should have {count:,} items")

    def _unknown(self, kind: int) -> CorruptCheckpoint:
        return CorruptCheckpoint(self.file.path, f"{self.what} has the unknown or too deeply nested type {kind}")
