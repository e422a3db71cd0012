"""Sampling parameters of every row, as tables from which a step's `Draws` are gathered for a device that samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.ops.batch import Draws
from quire.sampling.counter import uniforms
from quire.sampling.sampler import MIN_TEMPERATURE, Sampler

Array = NDArray[Any]
BELOW_ONE = np.float32(1.0 - 2.0**-24)  # the largest float32 below 1: rounding must not produce 1


class DrawTable:
    """One entry for each row, set when a request joins it."""

    def __init__(self, max_rows: int) -> None:
        self.can_run_on_device = np.zeros(max_rows, np.bool_)  # the device can sample for this row
        self._temperature, self._top_p, self._min_p = (np.zeros(max_rows, np.float32) for _ in range(3))
        self._top_k = np.zeros(max_rows, np.int32)
        self._streams = np.zeros(max_rows, np.uint64)
        self._offsets = np.zeros(max_rows, np.int32)

    def join(self, row: int, sampler: Sampler) -> None:
        """Set the entry of a row that a request joins."""
        params = sampler.params
        self.can_run_on_device[row] = sampler.can_run_on_device
        self._temperature[row] = 0.0 if sampler.is_greedy else max(params.temperature, MIN_TEMPERATURE)
        self._top_k[row], self._top_p[row], self._min_p[row] = params.top_k, params.top_p, params.min_p
        self._streams[row], self._offsets[row] = sampler.stream, sampler.offset

    def draws(self, rows: Array, device_sampled: Array, positions: Array) -> Draws:
        """The draws of a step. Each entry has a row, whether the device samples it, and its token's position."""
        return Draws(
            rows=np.where(device_sampled, rows, np.int32(-1)),
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            chance=self._chance(rows, positions),
            masked=np.zeros(len(rows), np.bool_),
        )

    def move(self, draws: Draws, rows: Array, positions: Array) -> None:
        """Move the same entries to other positions, in place."""
        draws.chance[:] = self._chance(rows, positions)

    def _chance(self, rows: Array, positions: Array) -> Array:
        numbers = uniforms(self._streams[rows], positions + self._offsets[rows])
        chance: Array = np.minimum(numbers.astype(np.float32), BELOW_ONE)
        return chance
