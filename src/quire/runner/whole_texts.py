"""Runs the plans of an encoder: every part is a whole text, and its result is one vector. Nothing outlives a step."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np

from quire.devices.base import Limits, Program, RunsAhead
from quire.ops.batch import Batch
from quire.runner.batch import NONE
from quire.runner.flight import Flight, Masks
from quire.runner.pooling import vector_result, whole_pools
from quire.types.errors import OutOfDeviceMemory, StepFailed
from quire.types.kinds import PoolKind
from quire.types.step import PartResult, StepPlan, StepResult

logger = logging.getLogger(__name__)


class WholeTextRunner:
    """One encoder on one device."""

    padded_tokens = 0

    def __init__(self, program: Program, limits: Limits, pool: PoolKind) -> None:
        self._program, self._limits, self._pool = program, limits, pool
        self.depth = program.max_in_flight if isinstance(program, RunsAhead) else 1  # steps in flight
        self._flights: deque[Flight] = deque()  # not collected

    def launch(self, plan: StepPlan, masks: Masks | None = None) -> Flight:
        """Start a step. One that does not fit into the device's memory continues without its longest text."""
        flight = Flight(plan, [], time.perf_counter(), masks)
        while flight.plan.parts and flight.pending is None and flight.error is None:
            try:
                flight.pending = self._program.launch(self._batch(flight.plan))
            except OutOfDeviceMemory as error:
                flight.remove_largest(error)
            except Exception as error:
                flight.error = self._failure(flight, error)
        return flight

    def collect(self, flight: Flight) -> StepResult:
        """Wait for a step. A second call returns the same result."""
        if flight.result is None:
            parts = flight.with_removed(self._results(flight))
            seconds = time.perf_counter() - flight.began
            flight.result = StepResult(flight.plan.number, parts, seconds, flight.busy_seconds or seconds)
            flight.pending = None
        return flight.result

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """There are no blocks."""

    def use_idle_time(self) -> bool:
        """Nothing is prepared in idle time."""
        return False

    def _results(self, flight: Flight) -> list[PartResult]:
        if flight.pending is not None:
            try:
                output = flight.pending.result()
                flight.busy_seconds = output.seconds
                if output.pooled is None:
                    raise TypeError("the program returned no vectors")
                return [vector_result(vector) for vector in output.pooled]
            except Exception as error:
                flight.error = self._failure(flight, error)
        return [PartResult(error=flight.error) for _ in flight.plan.parts]

    def _failure(self, flight: Flight, error: Exception) -> StepFailed:
        number, count = flight.plan.number, len(flight.plan.parts)
        logger.exception("step %d of %d texts failed", number, count, exc_info=error)
        return StepFailed(f"The device failed to compute this step ({type(error).__name__}): the log has more.")

    def _batch(self, plan: StepPlan) -> Batch:
        """The arrays of a step: all texts, one after the other."""
        parts = plan.parts
        counts = np.fromiter((part.num_tokens for part in parts), np.int32, len(parts))
        starts = np.zeros(len(parts) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        num_tokens = int(starts[-1])
        ids = np.fromiter(chain.from_iterable(part.tokens or () for part in parts), np.int32, num_tokens)
        row_of_token = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        positions = np.arange(num_tokens, dtype=np.int32) - starts[row_of_token]
        second_at = np.fromiter((part.second_at or part.num_tokens for part in parts), np.int32, len(parts))
        return Batch(
            token_ids=ids,
            positions=positions,
            slots=positions,  # no layer stores anything
            row_of_token=row_of_token,
            starts=starts,
            lengths=counts,
            block_tables=np.zeros((len(parts), 1), np.int32),
            logits_at=NONE,
            pools=whole_pools(starts, self._pool),
            token_types=(positions >= second_at[row_of_token]).astype(np.int32),
        )
