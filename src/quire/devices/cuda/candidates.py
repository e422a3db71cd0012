"""The ways to multiply that are worth timing for a product. Another kind of kernel adds its own in `candidates`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from quire.devices._triton.stream import LINE, Scratch, Tile

from .linear import Linear
from .tiles import FEW_TOKENS, Choice, Key, Tiles

ROWS_AND_WARPS = ((64, 4), (32, 2))
OF_MORE = ((64, 4), (128, 8))  # beyond few tokens: each program reads all of them, so there are to be fewer programs
COLUMNS = (32, 64, 128, 256)
STAGES = (3, 4)
SHARES = (1, 2, 4)
IN_FLIGHT = range(24 << 10, 100 << 10)  # bytes of weights that a program waits for: fewer do not hide memory's delay
MOST_NUMBERS = 16384  # of tokens, at a time: more of them leave the registers
MOST_PROGRAMS = 4  # for each processor, among which a product is divided further


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way for one product."""

    key: Key
    choice: Choice

    @property
    def name(self) -> str:
        """For people."""
        if self.choice is None:
            return "library"
        rows, columns, _, shares, warps, stages = self.choice
        return f"stream {rows} x {columns}, {shares} shares, {warps} warps, {stages} stages"

    def make(self, linear: Linear) -> Linear:
        """The same matrix, multiplied in this way."""
        return replace(linear, tiles=Tiles(linear.tiles.num_processors, known={self.key: self.choice}))


def candidates(key: Key, linear: Linear) -> list[Candidate]:
    """The library first, then what is used now, then all others."""
    now = linear.tiles.find(linear.weight, key.tokens, linear.is_gate)
    streamed = _streamed(key, linear.tiles.num_processors, linear.scratch)
    return [Candidate(key, choice) for choice in dict.fromkeys([None, now, *streamed])]


def _streamed(key: Key, num_processors: int, scratch: Scratch) -> Iterator[Tile]:
    """Tiles that keep memory busy, or of a small matrix all that it can be divided into."""
    shapes = ROWS_AND_WARPS if key.tokens <= FEW_TOKENS else OF_MORE
    whole = [
        Tile(rows, columns, key.tokens, 1, warps, stages)
        for (rows, warps), columns, stages in product(shapes, COLUMNS, STAGES)
        if columns * key.tokens <= MOST_NUMBERS
    ]
    whole = [tile for tile in whole if key.suits(tile)]
    for tile in [each for each in whole if _is_busy(key, each)] or whole:
        num_programs = -(-key.answers // tile.rows)
        for shares in _shares(key, tile, num_programs, num_processors):
            shared = tile._replace(shares=shares)
            if shares == 1 or scratch.fits(num_programs, shared):
                yield shared


def _is_busy(key: Key, tile: Tile) -> bool:
    """Does it read whole lines, and enough at a time?"""
    line = tile.columns * key.width
    return line >= LINE and line * tile.rows * tile.stages * (2 if key.is_gate else 1) in IN_FLIGHT


def _shares(key: Key, tile: Tile, num_programs: int, num_processors: int) -> list[int]:
    """With which nearly every processor has a program, and none has too many; else as many shares as can be."""
    able = [each for each in SHARES if key.suits(tile._replace(shares=each))]
    able = [each for each in able if each == 1 or num_programs * each <= MOST_PROGRAMS * num_processors]
    return [each for each in able if 4 * num_programs * each >= 3 * num_processors] or able[-1:]
