"""Drafts on a device that computes one step while the next is planned.

Drafts follow the newest token, so the steps in flight have to be collected before a step with drafts is planned, and
the device waits for the host. That wait is part of the measured time of such steps. As long as drafts are not expected
to pay for it, the next step is planned while one is in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quire.scheduler.acceptance import RequestDrafts, Source
from quire.scheduler.plain_step import PlainStep
from quire.scheduler.proposals import DraftLimits, ProposesByModel, ProposesDrafts
from quire.scheduler.request_state import Phase, RequestState
from quire.scheduler.speculation import PROBE_TOKENS, DraftCandidate, Speculation
from quire.scheduler.step_costs import StepCosts, size_of_step
from quire.types.sampling_values import OFF
from quire.types.step import Part

FIRST_PATIENCE = 32  # steps in which drafts were not expected to pay, until some are tried anyway
MAX_PATIENCE = 1024
MAX_PROBES = 4  # texts that are tried at once
FEW_TEXTS = 8  # with more, drafters that found nothing worthwhile are not called in every step
PAUSE = 4  # steps between two calls then
MAX_USES = 4  # steps that reuse one choice
FIRST_FORGIVEN, FORGIVEN = 0.005, 0.0005  # see step_costs.py; more here: such a table has only the steps with drafts
LEAST_SHARE = 0.2  # of a step's measured seconds: at least this much is not the draft model's time
NUMS_OF_TEXTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of steps whose times are kept apart
MOST_IN_ROW = 512  # steps with drafts; then PAUSE steps have none: the first of them is waited for, and not measured
GUESSED_WAIT = 1.25  # times the seconds of the plain step, until a step with drafts was measured


class CollectedStep(NamedTuple):
    """The time of a step that was collected."""

    parts: Sequence[Part]
    num_tokens: int
    seconds: float
    model_seconds: float  # of them, those of the draft model
    is_usual: bool


@dataclass(slots=True)
class LastChoice:
    """The last choice of drafts: the number of running texts, and the least gain of a chosen token."""

    num_running: int = 0
    least: float = 1.0
    num_uses: int = 0


class OverlappedSpeculation(Speculation):
    """Speculation that also decides when a step with drafts is worth the wait for it."""

    most_in_row = MOST_IN_ROW

    def __init__(
        self, drafters: Sequence[ProposesDrafts], limits: DraftLimits, model: ProposesByModel | None = None
    ) -> None:
        super().__init__(drafters, limits, model)
        self._model_seconds = 0.0  # that the model took before the step in flight: part of the measured time
        self._drafted_costs: dict[int, StepCosts] = {}  # by texts: each has a context to read, and work on the host
        self._num_skipped, self._patience, self._pause = 0, FIRST_PATIENCE, 0
        self._num_probes = 0  # drafts to try in the next step, whatever is expected of them
        self._results_to_learn: list[tuple[RequestDrafts, Source, int, int]] = []
        self._steps_to_record: list[CollectedStep] = []
        self._choice = LastChoice()

    def wants_results(self, running: Sequence[RequestState], has_newcomers: bool) -> bool:
        """Return whether the steps in flight must be collected before the next one is planned."""
        self._catch_up()
        if self._pending:
            return True
        has_prompts = has_newcomers or any(state.phase is Phase.PREFILLING for state in running)
        if has_prompts or not self._can_pay(len(running)):
            return False
        self._pause -= 1
        if self._pause > 0:
            return False
        texts = [each for each in running if _may_draft_if_collected(each)]
        texts = self._not_suspended(texts)
        found = self._candidates(texts) if texts else []
        step = PlainStep(len(running))
        if self._wants_model(texts, found, step):
            return True
        candidates = [  # of a text in flight, the first token will be known
            each._replace(gains=each.gains[1:]) if each.state.num_in_flight else each for each in found
        ]
        self._pause = PAUSE if len(running) > FEW_TEXTS else 0
        if not candidates:
            return False
        if any(super()._best_counts(candidates, step)):
            self._num_skipped, self._patience, self._pause = 0, FIRST_PATIENCE, 0
            return True
        self._num_skipped += max(self._pause, 1)
        if self._num_skipped < self._patience:
            return False
        self._num_skipped, self._patience = 0, min(2 * self._patience, MAX_PATIENCE)
        self._num_probes = MAX_PROBES
        return True

    def _wants_model(self, texts: list[RequestState], found: list[DraftCandidate], step: PlainStep) -> bool:
        """Return whether the model should draft or read now. Its drafts follow the newest token."""
        if self._model is None or not texts:
            return False
        drafted = self._texts_for_model(self._model, texts, found)
        return self._model_choice(self._model, drafted, step).does_something

    def suggest(self, running: Sequence[RequestState], has_newcomers: bool = False) -> None:
        """Set the drafts of the next step, if no step is in flight and no prompt is computed."""
        self._model_seconds = 0.0
        self._suspend_dropped(running)
        if all(state.phase is Phase.DECODING and not state.num_in_flight for state in running):
            self._num_without = 0  # when to look for drafts was decided before: the results were waited for
            if self._num_in_row == self.most_in_row:
                self._pause = PAUSE
            super().suggest(running, has_newcomers)
            self._model_seconds = 0.0 if self._model is None else self._model.spent_seconds
        self._num_probes = 0

    def _best_counts(self, candidates: list[DraftCandidate], step: PlainStep) -> list[int]:
        """Return how many tokens of each draft to verify. For many texts, choose by the last choice a few times."""
        choice, num_running = self._choice, step.num_texts
        if choice.num_running == num_running > FEW_TEXTS and choice.num_uses < MAX_USES:
            least = choice.least
            counts = [len([gain for gain in each.gains if gain >= least]) for each in candidates]
            choice.num_uses += 1
            if sum(counts) <= self._most_drafts(step):
                return counts
        counts = super()._best_counts(candidates, step)
        chosen = [each.gains[count - 1] for each, count in zip(candidates, counts, strict=True) if count]
        self._choice = LastChoice(num_running, min(chosen)) if chosen else LastChoice()
        return counts

    def _learn(self, request: RequestDrafts, source: Source, num_drafts: int, num_accepted: int) -> None:
        self._results_to_learn.append((request, source, num_drafts, num_accepted))

    def _catch_up(self) -> None:
        """Learn from the last results, while the device computes."""
        for step in self._steps_to_record:
            self._record_step(step)
        self._steps_to_record.clear()
        for request, source, num_drafts, num_accepted in self._results_to_learn:
            self._acceptance.record(request, source, num_drafts, num_accepted)
            request.chances[source] = super()._chances(request, source, self._limits.row_drafts)
        self._results_to_learn.clear()

    def _chances(self, request: RequestDrafts, source: Source, count: int) -> list[float]:
        found = request.chances.get(source)
        return super()._chances(request, source, count) if found is None else found[:count]

    def record_step(self, parts: Sequence[Part], num_tokens: int, seconds: float, is_usual: bool) -> None:
        """Keep the time of a step; `_catch_up` records it while the device computes."""
        self._steps_to_record.append(CollectedStep(parts, num_tokens, seconds, self._model_seconds, is_usual))

    def _record_step(self, step: CollectedStep) -> None:
        if step.num_tokens == len(step.parts):
            if step.is_usual:
                self._costs.record(step.num_tokens, step.seconds)
        elif self._was_waited_for(step):
            size, is_decoding = size_of_step(step.parts, step.num_tokens)
            if is_decoding:
                seconds = max(step.seconds - step.model_seconds, LEAST_SHARE * step.seconds)
                self._costs_with_drafts(len(step.parts)).record(size, seconds)
        self._add_probe_seconds(step.seconds)

    def _was_waited_for(self, step: CollectedStep) -> bool:
        """Return whether the step's time includes the wait for its plan, as with drafts."""
        has_drafts = any(part.num_logits > 1 for part in step.parts)
        return has_drafts or (not step.is_usual and any(part.tokens is None for part in step.parts))

    def _drafted_seconds(self, step: PlainStep, num_drafts: int, num_again: float = 0.0) -> float:
        if not self._costs_with_drafts(step.num_texts).has_measurements:
            return GUESSED_WAIT * self._costs.seconds(step.num_texts)
        return super()._drafted_seconds(step, num_drafts, num_again)

    def _costs_with_drafts(self, num_texts: int) -> StepCosts:
        most = NUMS_OF_TEXTS[min(bisect_left(NUMS_OF_TEXTS, num_texts), len(NUMS_OF_TEXTS) - 1)]
        found = self._drafted_costs.get(most)
        if found is None:
            found = self._drafted_costs[most] = StepCosts(FIRST_FORGIVEN, FORGIVEN)
        return found

    def _probe(self, candidate: DraftCandidate, size: float) -> int:
        if self._num_probes:
            self._num_probes -= 1
            return PROBE_TOKENS
        return super()._probe(candidate, size)


def _may_draft_if_collected(state: RequestState) -> bool:
    """Return whether a text may get drafts when no step is in flight.

    Constrained texts always wait for their results. If they began in different steps, they would take turns in flight
    for ever, and be without drafts.
    """
    is_decoding = state.is_plain_decode or (state.request.is_constrained and state.phase is Phase.DECODING)
    return is_decoding and state.request.sampling.speculate != OFF
