"""How each row draws its tokens: tables that a step's `Draws` are gathered from, for a device that chooses tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.ops.batch import Draws
from quire.sampling.counter import uniforms
from quire.sampling.sampler import MIN_TEMPERATURE, Sampler

Array = NDArray[Any]
BELOW_ONE = np.float32(1.0 - 2.0**-24)  # the largest: rounding must not make a chance of 1


class DrawTable:
    """Of all rows. Set when a row joins."""

    def __init__(self, max_rows: int) -> None:
        self.is_plain = np.zeros(max_rows, np.bool_)  # the device can choose for it
        self._temperature, self._top_p, self._min_p = (np.zeros(max_rows, np.float32) for _ in range(3))
        self._top_k = np.zeros(max_rows, np.int32)
        self._streams = np.zeros(max_rows, np.uint64)

    def join(self, row: int, sampler: Sampler) -> None:
        """A request takes the row."""
        params = sampler.params
        self.is_plain[row] = sampler.can_run_on_device
        self._temperature[row] = 0.0 if sampler.is_greedy else max(params.temperature, MIN_TEMPERATURE)
        self._top_k[row], self._top_p[row], self._min_p[row] = params.top_k, params.top_p, params.min_p
        self._streams[row] = sampler.stream

    def draws(self, rows: Array, device_sampled: Array, positions: Array) -> Draws:
        """Of a step: of each entry the row, whether the device chooses it, and the position of its token."""
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
        """The same entries at other positions."""
        draws.chance[:] = self._chance(rows, positions)

    def _chance(self, rows: Array, positions: Array) -> Array:
        chance: Array = np.minimum(uniforms(self._streams[rows], positions).astype(np.float32), BELOW_ONE)
        return chance
