"""Which buffer each value of a graph lies in. A buffer is used again as soon as the last reader of its values has run.

rows    float32, one row a token; several values may lie side by side in it
quants  the same numbers in blocks of 32 with a scale, for products with quantized weights
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from quire.devices.base import Limits

BufferKind = Literal["rows", "quants"]
Columns = tuple[int, int, int]  # buffer, first column, number of columns
NO_COLUMNS: Columns = (-1, 0, 0)
BLOCK = 32
BLOCK_BYTES = BLOCK + 2 * 4 + 2 * 2  # of quants: the numbers, a scale and a sum, two sums of halves


@dataclass(slots=True, eq=False)
class Buffer:
    """One buffer of the program. Its width is that of the widest value that ever lies in it."""

    index: int  # among its kind
    kind: BufferKind
    for_logits: bool  # a row for each logit, not for each token
    dim: int
    num_live: int = 1  # values in it that are still to be read
    has_parts: bool = False  # do values in it overlap?

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return 4 * self.dim if self.kind == "rows" else self.dim // BLOCK * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Where a value is."""

    buffer: Buffer
    offset: int
    dim: int

    @property
    def columns(self) -> Columns:
        return (self.buffer.index, self.offset, self.dim)


@dataclass(slots=True)
class Buffers:
    """All buffers of a program while it is lowered."""

    rows: list[Buffer] = field(default_factory=list)
    quants: list[Buffer] = field(default_factory=list)
    _free: list[Buffer] = field(default_factory=list)

    def allocate(
        self, dim: int, kind: BufferKind = "rows", *, for_logits: bool = False, num_values: int = 1
    ) -> BufferSlice:
        """Room for values of `dim` columns together. Of free buffers the narrowest that fits, else the widest grows."""
        free = [b for b in self._free if (b.kind, b.for_logits) == (kind, for_logits)]
        fitting = [b for b in free if b.dim >= dim]
        if not free:
            return BufferSlice(
                self.allocate_new(dim, kind, for_logits=for_logits, num_values=num_values).buffer, 0, dim
            )
        found = min(fitting, key=lambda b: b.dim) if fitting else max(free, key=lambda b: b.dim)
        self._free.remove(found)
        found.dim, found.num_live, found.has_parts = max(found.dim, dim), num_values, False
        return BufferSlice(found, 0, dim)

    def allocate_new(
        self, dim: int, kind: BufferKind = "rows", *, for_logits: bool = False, num_values: int = 1
    ) -> BufferSlice:
        """A new buffer. One that is never released stays with its value."""
        of_kind = self.rows if kind == "rows" else self.quants
        of_kind.append(Buffer(len(of_kind), kind, for_logits, dim, num_values))
        return BufferSlice(of_kind[-1], 0, dim)

    def part(self, whole: BufferSlice, start: int, dim: int) -> BufferSlice:
        """Some columns of a value, as a value of its own in the same buffer."""
        whole.buffer.num_live += 1
        whole.buffer.has_parts = True
        return BufferSlice(whole.buffer, whole.offset + start, dim)

    def is_shared(self, place: BufferSlice) -> bool:
        """May another value lie in the same columns?"""
        return place.buffer.has_parts

    def release(self, place: BufferSlice) -> None:
        """One value of this buffer has been read for the last time."""
        place.buffer.num_live -= 1
        if place.buffer.num_live == 0:
            self._free.append(place.buffer)

    def num_bytes(self, limits: Limits) -> int:
        """Bytes of all of them. A step has at most one logit row for each token."""
        max_logits = min(limits.max_logits, limits.max_tokens)
        return sum(
            buffer.row_bytes * (max_logits if buffer.for_logits else limits.max_tokens)
            for buffer in (*self.rows, *self.quants)
        )

    def create(self, program: Any) -> None:
        """Create them, in the order of their indices."""
        for buffer in self.rows:
            program.rows(buffer.dim, buffer.for_logits)
        for buffer in self.quants:
            program.quants(buffer.dim, buffer.for_logits)
