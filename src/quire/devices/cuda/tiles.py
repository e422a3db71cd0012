"""Which products are streamed, and how they are divided: by a table, else by a rule.

The rule aims at programs enough for every processor of the GPU to have two, each with 64 rows of the weight.
"""

from __future__ import annotations

from torch import Tensor

from quire.devices._triton.stream import Tile

FEW_TOKENS = 16
TILE_ROWS = 64
MAX_SHARES = 8


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
            self._found[key] = self._by_rule(*key)
        return self._found[key]

    def _by_rule(self, rows: int, columns: int, width: int, is_gate: bool) -> Tile | None:
        """`width` is of a number of the weight, in bytes."""
        at_a_time = next((each for each in (128, 64, 32) if columns % each == 0), None)
        if at_a_time is None or width > 2:
            return None
        at_a_time = min(at_a_time, 64) if is_gate and width == 2 else at_a_time
        programs = -(-rows // (2 if is_gate else 1) // TILE_ROWS)
        shares = 1
        while programs * shares < 2 * self._num_processors and shares < MAX_SHARES and not is_gate:
            if columns % (2 * shares * at_a_time):
                break
            shares *= 2
        return Tile(TILE_ROWS, at_a_time, FEW_TOKENS, shares, warps=4, stages=4)
