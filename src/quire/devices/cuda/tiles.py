"""Which products are streamed, and how they are divided: by a table, else by a rule.

The rule aims at programs enough for every processor of the GPU to have two, each with 64 rows of the weight.
"""

from __future__ import annotations

from torch import Tensor

from quire.devices._triton.int4 import Int4Weight
from quire.devices._triton.stream import Tile
from quire.devices.base import DeviceUnavailable

FEW_TOKENS = 16
FEW_TOKENS_INT4 = 64  # to write the matrix out moves nine times its bytes: four times through it is less
TILE_ROWS = 64
MAX_SHARES = 4
FIXED_TOKENS = 64  # and rows, of a program of the deterministic mode
MIN_FP8_COLUMNS = 32


# Measured on an H200: (rows of the weight, columns, bytes of a number, is it a gate?)
MEASURED = {
    (6144, 4096, 2, False): Tile(64, 128, FEW_TOKENS, 4, 4, 3),
    (4096, 4096, 2, False): Tile(32, 256, FEW_TOKENS, 1, 2, 4),
    (28672, 4096, 2, True): Tile(64, 64, FEW_TOKENS, 1, 4, 4),
    (4096, 14336, 2, False): Tile(64, 128, FEW_TOKENS, 4, 4, 4),
    (128256, 4096, 2, False): Tile(64, 128, FEW_TOKENS, 1, 4, 4),
    (6144, 4096, 1, False): Tile(64, 256, FEW_TOKENS, 4, 4, 3),
    (4096, 4096, 1, False): Tile(64, 256, FEW_TOKENS, 4, 4, 3),
    (28672, 4096, 1, True): Tile(32, 128, FEW_TOKENS, 1, 2, 3),
    (4096, 14336, 1, False): Tile(64, 256, FEW_TOKENS, 4, 4, 4),
}


class Tiles:
    """Of one GPU."""

    def __init__(self, num_processors: int, is_fixed: bool = False) -> None:
        self._num_processors = num_processors
        self.is_fixed = is_fixed
        self._found: dict[tuple[int, int, int, bool], Tile | None] = {}

    def find(self, weight: Tensor, num_tokens: int, is_gate: bool) -> Tile | None:
        """How to stream this product. None: the library multiplies.

        Fixed, every product of any number of tokens is divided alike, and a token's sums are made in one order.
        """
        key = (*weight.shape, weight.element_size(), is_gate)
        if key not in self._found:
            self._found[key] = self._fixed(*key) if self.is_fixed else MEASURED.get(key) or self._by_rule(*key)
        return self._found[key] if self.is_fixed or num_tokens <= FEW_TOKENS else None

    def _fixed(self, rows: int, columns: int, width: int, is_gate: bool) -> Tile:
        at_a_time = next((each for each in (64, 32, 16) if columns % each == 0), None)
        if at_a_time is None or (width == 1 and at_a_time < MIN_FP8_COLUMNS):
            raise DeviceUnavailable(f"Products over {columns} columns cannot be deterministic on this device.")
        return Tile(FIXED_TOKENS, at_a_time, FIXED_TOKENS, 1, 4, 2 if width > 2 else 3)

    def find_int4(self, weight: Int4Weight, num_tokens: int, is_gate: bool) -> Tile | None:
        """The same of a matrix of 4 bits. None: it is written out, and the library multiplies."""
        (rows, columns), at_a_time = weight.shape, 8 * weight.span
        if self.is_fixed:
            return Tile(TILE_ROWS, at_a_time, FEW_TOKENS)
        if num_tokens > FEW_TOKENS_INT4:
            return None
        shares = self._shares(rows // 2 if is_gate else rows, columns, at_a_time)
        return Tile(TILE_ROWS, at_a_time, FEW_TOKENS, shares)

    def _by_rule(self, rows: int, columns: int, width: int, is_gate: bool) -> Tile | None:
        """`width` is of a number of the weight, in bytes."""
        is_fp8 = width == 1
        wide = (256, 128, 64, 32) if is_fp8 and not is_gate else (64, 32) if is_gate and not is_fp8 else (128, 64, 32)
        at_a_time = next((each for each in wide if columns % each == 0), None)
        if at_a_time is None or width > 2:
            return None
        if is_gate:
            return Tile(32, at_a_time, FEW_TOKENS, 1, 2, 3) if is_fp8 else Tile(64, at_a_time, FEW_TOKENS, 1, 4, 4)
        shares = self._shares(rows, columns, at_a_time)
        return Tile(TILE_ROWS, at_a_time, FEW_TOKENS, shares, 4, 3 if is_fp8 else 4)

    def _shares(self, rows: int, columns: int, at_a_time: int) -> int:
        """Into how many shares of its columns a product is divided, each of whole `at_a_time`."""
        programs, shares = -(-rows // TILE_ROWS), 1
        while 2 * programs * shares < 3 * self._num_processors and shares < MAX_SHARES:
            if columns % (2 * shares * at_a_time):
                break
            shares *= 2
        return shares
