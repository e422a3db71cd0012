"""Runs plans: `launch` starts a step on the device, `collect` waits for it and answers what each part became.

The two are apart so that a device that works by itself can be given the next step while this one runs. Whatever fails
is said of the parts it belongs to: a row without a valid distribution fails alone, a launch that fails takes its own
parts with it, and the process lives on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.devices.base import Limits, Pending, Program, ReleasesBlocks, StepOutput
from quire.runner.batch import BatchBuilder, logits_of
from quire.runner.rows import Row, Rows
from quire.sampling.logprobs import score
from quire.sampling.sampler import Choice, Task, Top, sample
from quire.types.errors import QuireError, StepFailed
from quire.types.step import Part, PartResult, StepPlan, StepResult, TokenLogprobs

Array = NDArray[Any]
Mask = Array | QuireError  # uint32 [num_logits, words] of one part, or why its grammar has none
Masks = Callable[[], Mapping[int, Mask]]  # waits until they are there; by the part's place in the plan
logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Flight:
    """A step that was launched. Owned by the runner; the engine only carries it from launch to collect."""

    plan: StepPlan
    rows: list[Row]  # of its parts, as they were: another request may have taken the row meanwhile
    began: float
    masks: Masks | None = None
    pending: Pending | None = None
    error: QuireError | None = None
    result: StepResult | None = None


class Runner:
    """One model on one device."""

    def __init__(self, program: Program, limits: Limits, vocab_size: int) -> None:
        self._program = program
        self._rows = Rows(limits.max_rows, limits.max_blocks, vocab_size)
        self._batches = BatchBuilder(limits)
        self._last: Flight | None = None

    def run(self, plan: StepPlan) -> StepResult:
        """A whole step."""
        return self.collect(self.launch(plan))

    def launch(self, plan: StepPlan, masks: Masks | None = None) -> Flight:
        """Start a step. Plans come in the order in which they were made; masks may be on their way until it ends."""
        if self._last is not None and self._last.result is None:
            self.collect(self._last)  # tokens are sampled on the host: the next step's first tokens come from there
        began = time.perf_counter()
        self._rows.update(plan)
        flight = self._last = Flight(plan, [self._rows[part.row] for part in plan.parts], began, masks)
        if not plan.parts:
            return flight
        try:
            for row, part in zip(flight.rows, plan.parts, strict=True):
                row.hear(part)
            flight.pending = self._program.launch(self._batches.build(plan, self._rows))
        except Exception as error:
            flight.error = _step_failed(plan, error)
        return flight

    def collect(self, flight: Flight) -> StepResult:
        """Wait for a step. A second call answers the same."""
        if flight.result is None:
            parts = self._collect_parts(flight)
            flight.result = StepResult(flight.plan.number, parts, time.perf_counter() - flight.began)
            flight.pending = flight.masks = None
        return flight.result

    def release_blocks(self, blocks: Sequence[int]) -> None:
        """Let the system have the memory of these blocks, ascending, where the device can do that."""
        if isinstance(self._program, ReleasesBlocks):
            self._program.release_blocks(np.array(blocks, np.int32))

    def _collect_parts(self, flight: Flight) -> tuple[PartResult, ...]:
        if flight.pending is not None:
            try:
                output = flight.pending.result()
                if output.logits is None:
                    raise TypeError("the program gave no logits")
                return self._sample(flight, output.logits, _top(output))
            except Exception as error:
                flight.error = _step_failed(flight.plan, error)
        return tuple(PartResult(error=flight.error) for _ in flight.plan.parts)

    def _sample(self, flight: Flight, logits: Array, top: Top | None) -> tuple[PartResult, ...]:
        """Every part's tokens, and the scores of its prompt."""
        masks = flight.masks() if flight.masks is not None else {}
        tasks, whose, results, at = [], [], [], 0
        for index, (part, row) in enumerate(zip(flight.plan.parts, flight.rows, strict=True)):
            count = logits_of(part)
            scores = _score(part, row, logits[at : at + count]) if part.scores_prompt else ()
            mask = masks.get(index)
            results.append(PartResult(prompt_logprobs=scores))
            if isinstance(mask, QuireError):
                results[index] = PartResult(error=mask)
            elif part.num_logits:
                end = part.start + (1 if part.tokens is None else len(part.tokens))
                first, position = at + count - part.num_logits, end - part.num_logits + 1
                tasks.append(Task(row.sampler, first, position, part.drafts, mask))
                whose.append(index)
            at += count
        for index, choice in zip(whose, sample(logits, tasks, top), strict=True):
            results[index] = self._take(flight.plan.parts[index], flight.rows[index], choice, results[index])
        return tuple(results)

    def _take(self, part: Part, row: Row, choice: Choice, scored: PartResult) -> PartResult:
        if choice.error is not None:
            return PartResult(error=choice.error)
        self._rows.last_tokens[part.row] = choice.tokens[-1]
        row.num_told += len(choice.tokens)
        return PartResult(choice.tokens, choice.logprobs, None, scored.prompt_logprobs)


def _top(output: StepOutput) -> Top | None:
    if output.top_tokens is None or output.top_logits is None:
        return None
    return Top(output.top_tokens, output.top_logits)


def _score(part: Part, row: Row, logits: Array) -> tuple[TokenLogprobs, ...]:
    """How likely the prompt's tokens after each of the part's positions were; its last token has none after it."""
    targets = row.join.tokens[part.start + 1 : min(part.start + len(logits) + 1, row.join.num_prompt)]
    return score(logits, targets, row.join.sampling.prompt_logprobs or 0)


def _step_failed(plan: StepPlan, error: Exception) -> StepFailed:
    """What a client may know; the rest is in the log."""
    logger.exception("step %d of %d parts failed", plan.number, len(plan.parts), exc_info=error)
    if isinstance(error, StepFailed):
        return error
    return StepFailed(f"The device failed to compute this step ({type(error).__name__}): the log has more.")
