"""How long steps take, by their size, as measured. The size is the number of tokens; those without logits count less.

Sizes share a few cells. All cells follow the newest measurements a little: contexts grow and machines vary. A cell with
few measurements counts as faster the longer ago they are, so that it is tried again. Steps with prompts are cells of
their own: they bound the time of a step with more drafts than any before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.types.step import Part

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192)
GAIN = 0.03  # of a measurement in its cell, in logarithms; more for the first ones
COMMON_GAIN = 0.15  # of a measurement in all cells: most changes are those of the machine and of contexts
FIRST_FORGIVEN = 0.0005  # of a cell's seconds for each step since its last of few measurements: they may be too slow
FORGIVEN = 0.00002  # the same for other cells
MOST_FORGIVEN = 0.25
MOST = 3.0  # times as fast or as slow as expected: what a measurement counts at most
GUESSED_SLOPE = 0.25  # of a step of one token, for each further token, until two sizes have been measured
FIRST_GAP = 0.5  # of the line's rise in the first gap, so that a size there is tried if it may be the best
FEW = 3  # measurements of a cell; with more, its changes apply to all cells
WITHOUT_LOGITS = 1 / 1.2  # of a token with logits: the size of a token that has none
MOST_OF_A_TEXT = 33  # tokens of one text in a step; with more it is a prompt


@dataclass(slots=True)
class CostCell:
    """Steps of similar size."""

    size: float  # in the mean
    seconds: float  # relative to `_common`
    measured_at: int  # in steps
    count: int = 1  # of measurements


class CostLine(NamedTuple):
    """Seconds of the sizes from `begin` on. Those up to `gap_end` are in cells without measurements."""

    begin: float
    seconds: float
    slope: float
    gap_end: float = 0.0
    gap_slope: float = 0.0


class StepCosts:
    """Seconds of a step, by its tokens."""

    def __init__(self, first_forgiven: float = FIRST_FORGIVEN, forgiven: float = FORGIVEN) -> None:
        self._first_forgiven, self._forgiven_rate = first_forgiven, forgiven
        self._decoding: dict[int, CostCell] = {}  # ascending
        self._prompts: dict[int, CostCell] = {}  # ascending
        self._common = 1.0
        self._num_steps = 0
        self._points: list[tuple[float, float]] = []  # tokens, seconds; of all measured sizes of decoding steps
        self._lines: dict[int, CostLine] = {}  # to each of them, and beyond the last one, as far as they were asked for

    @property
    def has_measurements(self) -> bool:
        """Has any step been measured that only decodes?"""
        return bool(self._decoding)

    def record(self, size: float, seconds: float, is_decoding: bool = True) -> None:
        """Record the time of a step of this size. Steps without tokens (joins) are ignored."""
        if seconds <= 0.0 or not size:
            return
        self._num_steps += 1
        cells, key = self._decoding if is_decoding else self._prompts, _cell_of(size)
        cell = cells.get(key)
        if cell is None:
            cells[key] = CostCell(size, seconds / self._common, self._num_steps)
            kept = {each: cells[each] for each in sorted(cells)}
            cells.clear()
            cells.update(kept)
        else:
            expected = cell.seconds * size / cell.size  # within a cell in proportion
            ratio = min(max(seconds / (expected * self._common), 1.0 / MOST), MOST)
            gain = max(GAIN, 1.0 / (cell.count + 1))
            cell.seconds *= ratio**gain * (1.0 + gain * (size / cell.size - 1.0))
            cell.size += gain * (size - cell.size)
            cell.count += 1
            if is_decoding and cell.count > FEW:
                self._common *= ratio**COMMON_GAIN
            cell.measured_at = self._num_steps
        self._points = []
        self._lines.clear()

    def seconds(self, size: float) -> float:
        """Return the expected seconds of a step of this size that decodes.

        Between measured sizes they are on a line; beyond them, on that from half of the last one. A size in a gap is on
        the line from half of the one before the gap: steps are bound by memory first, so their times rise slowly and
        then fast.
        """
        points = self._points = self._points or self._measured_points()
        if len(points) < 2:
            first, below = points[0] if points else (1.0, 1.0)
            return below * (1.0 + GUESSED_SLOPE * (size - first) / first)
        at = max(bisect_left(points, (size, 0.0)), 1)
        line = self._lines.get(at)
        if line is None:
            line = self._lines[at] = _line_to(points, at)
        slope = line.slope if size > line.gap_end else line.gap_slope
        return max(line.seconds + slope * (size - line.begin), 1e-9)

    def tile_seconds(self, size: float) -> float:
        """Return the expected seconds of a step of this size if its last token is the first one of a tile.

        Kernels compute a tile of tokens in the time of a whole one, so its size costs as much as others of its cell.
        """
        cell = self._decoding.get(_cell_of(size))
        seconds = self.seconds(size)
        return seconds if cell is None else max(seconds, cell.seconds * self._common)

    def _measured_points(self) -> list[tuple[float, float]]:
        """Cells of decoding steps, then one of prompts. One that was measured rarely is not above its neighbours."""
        cells = list(self._decoding.values())
        most = cells[-1].size if cells else 0.0
        prompts = next((cell for cell in self._prompts.values() if cell.size > 2 * most), None)
        points = [(cell.size, self._forgiven(cell)) for cell in cells]
        if prompts is not None:
            points.append((prompts.size, prompts.seconds * self._common))
        for at in range(1, len(points) - 1):
            if cells[at].count <= FEW:
                (low, below), (middle, seconds), (high, above) = points[at - 1 : at + 2]
                points[at] = middle, min(seconds, max(below, below + (above - below) * (middle - low) / (high - low)))
        return points

    def _forgiven(self, cell: CostCell) -> float:
        age = self._num_steps - cell.measured_at
        rate = self._forgiven_rate if cell.count > FEW else self._first_forgiven
        return cell.seconds * self._common * (1.0 - min(rate * age, MOST_FORGIVEN))


def size_of_step(parts: Sequence[Part], num_tokens: int) -> tuple[float, bool]:
    """Return the size of a step with `num_tokens` in all, and whether no prompt is in it."""
    num_logits = len(parts)
    if num_tokens == num_logits:  # a part has a token or more: here each has one
        return num_tokens, True
    num_logits = sum(part.num_logits for part in parts)
    is_decoding = all(part.start and part.num_logits and part.num_tokens <= MOST_OF_A_TEXT for part in parts)
    return num_logits + WITHOUT_LOGITS * (num_tokens - num_logits), is_decoding


def _half_of(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the last point with at most half of the tokens of the last one: closer points may differ by chance."""
    return next((point for point in reversed(points) if 2 * point[0] <= points[-1][0]), None)


def _line_to(points: Sequence[tuple[float, float]], at: int) -> CostLine:
    """Return the line that ends at point `at`. For the number of points: the line beyond the last one."""
    if at == len(points):
        (low, below), (high, above) = _half_of(points) or points[0], points[-1]
        return CostLine(low, below, max(0.0, above - below) / (high - low))
    (low, below), (high, above) = points[at - 1], points[at]
    slope, half = max(0.0, above - below) / (high - low), _half_of(points[:at])
    if half is None:
        gap_slope = slope * FIRST_GAP
    else:
        gap_slope = min(slope, max(0.0, below - half[1]) / (low - half[0]))
    return CostLine(low, below, slope, float(SIZES[max(bisect_left(SIZES, high), 1) - 1]), gap_slope)


def _cell_of(size: float) -> int:
    """Return the cell of such steps: the next larger of `SIZES`."""
    return SIZES[min(bisect_left(SIZES, size), len(SIZES) - 1)]
