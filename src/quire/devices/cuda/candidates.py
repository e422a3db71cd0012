"""The candidates that the tuner times for a product. Another kind of kernel adds its own in `candidates`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from quire.devices._triton.stream import LINE, Scratch, Tile

from .linear import Linear
from .tiles import FEW_TOKENS, ProductKey, TileChoice, Tiles

ROWS_AND_WARPS = ((64, 4), (32, 2), (16, 1))
MANY_ROWS_AND_WARPS = ((64, 4), (128, 8))  # beyond few tokens: every program reads all tokens, so fewer are better
COLUMNS = (32, 64, 128, 256, 512)
STAGES = (3, 4)
SHARES = (1, 2, 4)
IN_FLIGHT = range(24 << 10, 100 << 10)  # bytes of weights in flight per program: fewer do not hide memory latency
MAX_NUMBERS = 16384  # of tokens at a time: more spill from registers
MAX_PROGRAMS = 4  # per processor: beyond this, a product is not split further


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to multiply one product."""

    key: ProductKey
    choice: TileChoice

    @property
    def name(self) -> str:
        """A name for people."""
        if self.choice is None:
            return "library"
        rows, columns, _, shares, warps, stages = self.choice
        return f"stream {rows} x {columns}, {shares} shares, {warps} warps, {stages} stages"

    def apply(self, linear: Linear) -> Linear:
        """Return the same matrix, multiplied in this way."""
        return replace(linear, tiles=Tiles(linear.tiles.num_processors, known={self.key: self.choice}))


def candidates(key: ProductKey, linear: Linear) -> list[Candidate]:
    """Return the library first, then the current choice, then all others."""
    current = linear.tiles.find(linear.weight, key.tokens, linear.is_gate)
    tiles = _stream_tiles(key, linear.tiles.num_processors, linear.scratch)
    return [Candidate(key, choice) for choice in dict.fromkeys([None, current, *tiles])]


def _stream_tiles(key: ProductKey, num_processors: int, scratch: Scratch) -> Iterator[Tile]:
    """Yield tiles that keep memory busy, or for a small matrix all possible tiles."""
    shapes = ROWS_AND_WARPS if key.tokens <= FEW_TOKENS else MANY_ROWS_AND_WARPS
    whole = [
        Tile(rows, columns, key.tokens, 1, warps, stages)
        for (rows, warps), columns, stages in product(shapes, COLUMNS, STAGES)
        if columns * key.tokens <= MAX_NUMBERS
    ]
    whole = [tile for tile in whole if key.supports(tile)]
    for tile in [each for each in whole if _is_busy(key, each)] or whole:
        num_programs = -(-key.outputs // tile.rows)
        for shares in _shares(key, tile, num_programs, num_processors):
            shared = tile._replace(shares=shares)
            if shares == 1 or scratch.fits(num_programs, shared):
                yield shared


def _is_busy(key: ProductKey, tile: Tile) -> bool:
    """Return whether the tile reads whole cache lines, and enough bytes at a time."""
    line = tile.columns * key.width
    return line >= LINE and line * tile.rows * tile.stages * (2 if key.is_gate else 1) in IN_FLIGHT


def _shares(key: ProductKey, tile: Tile, num_programs: int, num_processors: int) -> list[int]:
    """Return the numbers of shares that give nearly every processor a program, and none too many; else the largest."""
    possible = [each for each in SHARES if key.supports(tile._replace(shares=each))]
    possible = [each for each in possible if each == 1 or num_programs * each <= MAX_PROGRAMS * num_processors]
    return [each for each in possible if 4 * num_programs * each >= 3 * num_processors] or possible[-1:]
