"""Which products are streamed, and how they are divided: by a table, else by a rule.

The rule aims at programs enough for every processor of the GPU to have two, each with 64 rows of the weight.
"""

from __future__ import annotations

from torch import Tensor

from quire.devices._triton.single import Strip
from quire.devices._triton.stream import Tile

FEW_TOKENS = 16
TILE_ROWS = 64
MAX_SHARES = 4


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

    def __init__(self, num_processors: int, streams: bool = True) -> None:
        self._num_processors = num_processors
        self._streams = streams
        self._found: dict[tuple[int, int, int, bool], Tile | None] = {}

    def find(self, weight: Tensor, num_tokens: int, is_gate: bool) -> Tile | None:
        """How to stream this product. None: the library multiplies."""
        if num_tokens > FEW_TOKENS or not self._streams:
            return None
        key = (*weight.shape, weight.element_size(), is_gate)
        if key not in self._found:
            self._found[key] = MEASURED.get(key) or self._by_rule(*key)
        return self._found[key]

    def strip(self, weight: Tensor) -> Strip:
        """How to multiply one token with it."""
        return Strip(2, 2048) if weight.shape[1] <= 4096 or weight.element_size() == 1 else Strip(2, 1024)

    def _by_rule(self, rows: int, columns: int, width: int, is_gate: bool) -> Tile | None:
        """`width` is of a number of the weight, in bytes."""
        is_fp8 = width == 1
        wide = (256, 128, 64, 32) if is_fp8 and not is_gate else (64, 32) if is_gate and not is_fp8 else (128, 64, 32)
        at_a_time = next((each for each in wide if columns % each == 0), None)
        if at_a_time is None or width > 2:
            return None
        if is_gate:
            return Tile(32, at_a_time, FEW_TOKENS, 1, 2, 3) if is_fp8 else Tile(64, at_a_time, FEW_TOKENS, 1, 4, 4)
        programs = -(-rows // TILE_ROWS)
        shares = 1
        while 2 * programs * shares < 3 * self._num_processors and shares < MAX_SHARES:
            if columns % (2 * shares * at_a_time):
                break
            shares *= 2
        return Tile(TILE_ROWS, at_a_time, FEW_TOKENS, shares, 4, 3 if is_fp8 else 4)
