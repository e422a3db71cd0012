"""Assigns the values of a graph to buffers. A buffer is reused once the last reader of its values has run.

rows    float32, one row per token; several values may be side by side in it
quants  the same numbers in blocks of 32 with a scale, for products with quantized weights
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

BufferKind = Literal["rows", "quants"]
Columns = tuple[int, int, int]  # buffer, first column, number of columns
NO_COLUMNS: Columns = (-1, 0, 0)


@dataclass(slots=True, eq=False)
class Buffer:
    """One buffer of the program, as wide as the widest value that it ever holds."""

    index: int  # among its kind
    kind: BufferKind
    for_logits: bool  # a row for each logit, not for each token
    dim: int
    num_live: int = 1  # values in it that are still to be read


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """The columns of a buffer that hold a value."""

    buffer: Buffer
    offset: int
    dim: int

    @property
    def columns(self) -> Columns:
        return (self.buffer.index, self.offset, self.dim)


@dataclass(slots=True)
class Buffers:
    """All buffers of a program during lowering."""

    rows: list[Buffer] = field(default_factory=list)
    quants: list[Buffer] = field(default_factory=list)
    _free: list[Buffer] = field(default_factory=list)

    def allocate(
        self, dim: int, kind: BufferKind = "rows", *, for_logits: bool = False, num_values: int = 1
    ) -> BufferSlice:
        """Allocate `dim` columns: in the narrowest free buffer that fits, or else the widest free buffer grows."""
        free = [b for b in self._free if (b.kind, b.for_logits) == (kind, for_logits)]
        fitting = [b for b in free if b.dim >= dim]
        if not free:
            return BufferSlice(
                self.allocate_new(dim, kind, for_logits=for_logits, num_values=num_values).buffer, 0, dim
            )
        found = min(fitting, key=lambda b: b.dim) if fitting else max(free, key=lambda b: b.dim)
        self._free.remove(found)
        found.dim, found.num_live = max(found.dim, dim), num_values
        return BufferSlice(found, 0, dim)

    def allocate_new(
        self, dim: int, kind: BufferKind = "rows", *, for_logits: bool = False, num_values: int = 1
    ) -> BufferSlice:
        """Allocate a new buffer. It stays with its value until it is released."""
        of_kind = self.rows if kind == "rows" else self.quants
        of_kind.append(Buffer(len(of_kind), kind, for_logits, dim, num_values))
        return BufferSlice(of_kind[-1], 0, dim)

    def release(self, place: BufferSlice) -> None:
        """Record that one value of this buffer has been read for the last time."""
        place.buffer.num_live -= 1
        if place.buffer.num_live == 0:
            self._free.append(place.buffer)

    def create(self, program: Any) -> None:
        """Create the buffers in the native program, in the order of their indices."""
        for buffer in self.rows:
            program.rows(buffer.dim, buffer.for_logits)
        for buffer in self.quants:
            program.quants(buffer.dim, buffer.for_logits)
