"""Which products are streamed, and with which tiles: as tuned on this GPU, else as shipped, else by a rule.

A product is identified by its matrix and its bucket of tokens. The rule aims at two programs per processor of the GPU,
each with 64 rows of the weight; it covers few tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from quire.devices._triton.int4 import Int4Weight
from quire.devices._triton.stream import Tile
from quire.devices.facts import DeviceUnavailable

FEW_TOKENS = 16
FEW_TOKENS_INT4 = 64  # dequantizing moves nine times the bytes of the matrix: reading it four times is cheaper
BUCKETS = (FEW_TOKENS, 32, 64, 128)  # maximum tokens of each; beyond, the library multiplies
TILE_ROWS = 64
MAX_SHARES = 4
FIXED_TOKENS = 64  # tokens and rows of a program in deterministic mode
MIN_FP8_COLUMNS = 32
SHORT = 8  # tiles of a share: with fewer stages, more programs run at once
LONG = 1024  # columns: of fewer, a share would be less than a tile
LOADED = 16  # columns that are loaded at once, at least

TileChoice = Tile | None  # None: the library multiplies
KINDS: dict[str, type[Tile]] = {"stream": Tile}  # types of choices by their names on disk


class ProductKey(NamedTuple):
    """Identifies products that are alike: they share the fastest tile. The field names are keys on disk."""

    rows: int  # of the weight
    columns: int
    width: int  # bytes per number of the weight
    is_gate: bool
    tokens: int  # maximum of the bucket

    @classmethod
    def of(cls, weight: Tensor, tokens: int, is_gate: bool) -> ProductKey:
        """Return the key of a product with this weight."""
        rows, columns = weight.shape
        return cls(rows, columns, weight.element_size(), is_gate, tokens)

    @property
    def outputs(self) -> int:
        """Outputs per token."""
        return self.rows // 2 if self.is_gate else self.rows

    def supports(self, tile: Tile) -> bool:
        """Return whether the kernel supports this tile for the product."""
        are_powers = all(isinstance(each, int) and each > 0 and each & (each - 1) == 0 for each in tile[:5])
        return (
            are_powers
            and tile.tokens == self.tokens
            and tile.rows >= 16
            and tile.columns >= (MIN_FP8_COLUMNS if self.width == 1 else 16)
            and self.width <= 2
            and self.columns % (LOADED * tile.shares) == 0
            and self.columns // tile.shares >= tile.columns
            and isinstance(tile.stages, int)
            and tile.stages > 0
        )


# Measured on an H200; an H100 has the same processors.
MEASURED_ON = ("H100", "H200")
MEASURED: dict[ProductKey, TileChoice] = {
    ProductKey(6144, 4096, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 4, 4, 3),
    ProductKey(4096, 4096, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 4, 4, 4),
    ProductKey(12352, 4096, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 1, 4, 3),
    ProductKey(24576, 4096, 2, True, FEW_TOKENS): Tile(64, 64, FEW_TOKENS, 2, 4, 4),
    ProductKey(4096, 12288, 2, False, FEW_TOKENS): Tile(16, 512, FEW_TOKENS, 1, 1, 4),
    ProductKey(248320, 4096, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 1, 4, 3),
    ProductKey(5120, 2048, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 4, 4, 3),
    ProductKey(2048, 4096, 2, False, FEW_TOKENS): Tile(64, 256, FEW_TOKENS, 4, 4, 3),
    ProductKey(5120, 2880, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 4, 4, 3),
    ProductKey(2880, 4096, 2, False, FEW_TOKENS): Tile(32, 256, FEW_TOKENS, 4, 2, 4),
    ProductKey(28672, 4096, 2, True, FEW_TOKENS): Tile(64, 64, FEW_TOKENS, 1, 4, 4),
    ProductKey(4096, 14336, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 4, 4, 4),
    ProductKey(128256, 4096, 2, False, FEW_TOKENS): Tile(64, 128, FEW_TOKENS, 1, 4, 4),
    ProductKey(6144, 4096, 1, False, FEW_TOKENS): Tile(64, 256, FEW_TOKENS, 4, 4, 3),
    ProductKey(4096, 4096, 1, False, FEW_TOKENS): Tile(64, 256, FEW_TOKENS, 4, 4, 3),
    ProductKey(28672, 4096, 1, True, FEW_TOKENS): Tile(32, 128, FEW_TOKENS, 1, 2, 3),
    ProductKey(4096, 14336, 1, False, FEW_TOKENS): Tile(64, 256, FEW_TOKENS, 4, 4, 4),
    ProductKey(6144, 4096, 2, False, 32): Tile(64, 128, 32, 4, 4, 3),
    ProductKey(4096, 4096, 2, False, 32): Tile(64, 256, 32, 2, 4, 3),
    ProductKey(28672, 4096, 2, True, 32): Tile(64, 64, 32, 1, 4, 4),
    ProductKey(4096, 14336, 2, False, 32): Tile(64, 256, 32, 2, 4, 3),
    ProductKey(12352, 4096, 2, False, 32): Tile(64, 128, 32, 1, 4, 3),
    ProductKey(4096, 12288, 2, False, 32): Tile(64, 256, 32, 2, 4, 3),
    ProductKey(248320, 4096, 2, False, 32): Tile(64, 128, 32, 1, 4, 3),
    ProductKey(6144, 4096, 1, False, 32): Tile(64, 256, 32, 2, 4, 4),
    ProductKey(28672, 4096, 1, True, 32): Tile(64, 128, 32, 1, 4, 4),
    ProductKey(28672, 4096, 2, True, 64): Tile(64, 64, 64, 1, 4, 4),
    ProductKey(28672, 4096, 1, True, 64): Tile(64, 128, 64, 1, 4, 4),
    ProductKey(28672, 4096, 2, True, 128): Tile(64, 64, 128, 1, 4, 3),
    ProductKey(28672, 4096, 1, True, 128): Tile(64, 128, 128, 1, 4, 3),
}


def shipped(gpu: str) -> Mapping[ProductKey, TileChoice]:
    """Return the choices that come with Quire for a GPU of this name."""
    return MEASURED if any(each in gpu for each in MEASURED_ON) else {}


class Tiles:
    """Chooses tiles on one GPU. `known` choices override the rule."""

    def __init__(
        self, num_processors: int, is_fixed: bool = False, known: Mapping[ProductKey, TileChoice] | None = None
    ) -> None:
        self.num_processors = num_processors
        self.is_fixed = is_fixed
        self._found: dict[ProductKey, TileChoice] = {} if is_fixed else dict(known or {})

    def find(self, weight: Tensor, num_tokens: int, is_gate: bool) -> TileChoice:
        """Return the tile of this product. None: the library multiplies.

        In fixed (deterministic) mode, products of any number of tokens use one tile, so sums have one order.
        """
        tokens = FIXED_TOKENS if self.is_fixed else next((each for each in BUCKETS if num_tokens <= each), None)
        if tokens is None:
            return None
        key = ProductKey.of(weight, tokens, is_gate)
        if key not in self._found:
            self._found[key] = self._fixed(key) if self.is_fixed else self._by_rule(key)
        return self._found[key]

    def _fixed(self, key: ProductKey) -> Tile:
        columns, width = key.columns, key.width
        at_a_time = next((each for each in (64, 32, 16) if columns % each == 0), None)
        if at_a_time is None or (width == 1 and at_a_time < MIN_FP8_COLUMNS):
            raise DeviceUnavailable(
                f"Deterministic mode does not support products over {columns} columns on this device: they must be a "
                f"multiple of {MIN_FP8_COLUMNS if width == 1 else 16}. Turn it off for this model."
            )
        return Tile(FIXED_TOKENS, at_a_time, FIXED_TOKENS, 1, 4, 2 if width > 2 else 3)

    def find_int4(self, weight: Int4Weight, num_tokens: int, is_gate: bool) -> TileChoice:
        """Return the tile of a product with a 4-bit matrix. None: it is dequantized, and the library multiplies."""
        (rows, columns), at_a_time = weight.shape, 8 * weight.span
        if self.is_fixed:
            return Tile(TILE_ROWS, at_a_time, FEW_TOKENS)
        if num_tokens > FEW_TOKENS_INT4:
            return None
        shares = self._shares(rows // 2 if is_gate else rows, columns, at_a_time)
        return Tile(TILE_ROWS, at_a_time, FEW_TOKENS, shares)

    def _by_rule(self, key: ProductKey) -> TileChoice:
        rows, columns, width, is_gate, tokens = key
        is_fp8 = width == 1
        wide = (256, 128, 64, 32) if is_fp8 and not is_gate else (64, 32) if is_gate and not is_fp8 else (128, 64, 32)
        at_a_time = next((each for each in wide if columns % each == 0), None)
        multiple = at_a_time
        if columns % LOADED == 0 and columns >= LONG and columns % wide[0]:
            at_a_time, multiple = wide[0], LOADED  # the last columns of a share are cut
        if at_a_time is None or multiple is None or width > 2 or tokens > FEW_TOKENS:
            return None
        if is_gate:
            return Tile(32, at_a_time, FEW_TOKENS, 1, 2, 3) if is_fp8 else Tile(64, at_a_time, FEW_TOKENS, 1, 4, 4)
        shares = self._shares(rows, columns, multiple)
        is_short = columns // (shares * at_a_time) <= SHORT
        return Tile(TILE_ROWS, at_a_time, FEW_TOKENS, shares, 4, 3 if is_fp8 or is_short else 4)

    def _shares(self, rows: int, columns: int, multiple: int) -> int:
        """Return the number of shares that the columns are divided into, each a multiple of `multiple`."""
        programs, shares = -(-rows // TILE_ROWS), 1
        while 2 * programs * shares < 3 * self.num_processors and shares < MAX_SHARES:
            if columns % (2 * shares * multiple):
                break
            shares *= 2
        return shares
