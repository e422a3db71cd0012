"""The scheduler of an encoder: every request is one text, computed whole in one step, and nothing of it is kept.

A step takes texts in the order of the queue (priority, then fair share, then arrival) as long as the next one fits.
There are no blocks, so nothing is preempted, and a request waits for nothing but its turn.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque

from quire.config import SchedulerConfig
from quire.scheduler.limits import FairShare, StepTimeModel
from quire.scheduler.live_requests import LiveRequests, check_queue
from quire.scheduler.queues import WaitingQueue
from quire.scheduler.request_state import RequestState
from quire.scheduler.request_table import RequestTable
from quire.scheduler.stats import DraftStats, SchedulerLoad, SchedulerStats, measure_load
from quire.types.errors import DeadlineExceeded, DuplicateRequest, InvalidRequest, TextTooLong
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, Part, StepPlan, StepResult


class WholeTextScheduler(LiveRequests):
    """Owns every request from `add` to its last `Outcome`, as `Scheduler` does."""

    fewest_blocks = 1  # a cache without memory has one
    wants_results = False

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._step_times = StepTimeModel()
        self._shares = FairShare()
        self._waiting = WaitingQueue(self._shares, 1, 0.0)
        self._requests = RequestTable()
        self._in_flight: deque[tuple[StepPlan, list[RequestState]]] = deque()
        self._in_step: set[RequestState] = set()  # those of steps in flight that have not ended
        self._outcomes: list[Outcome] = []
        self._num_arrived = self._num_steps = 0

    # ── requests ──

    def add(self, request: GenerateRequest, now: float, packed_prompt: array[int] | None = None) -> None:
        """Queue a request. Raises a QuireError, and keeps nothing, if it cannot be served."""
        if request.id in self._requests:
            raise DuplicateRequest(request.id)
        if len(request.prompt) > self._config.max_context:
            raise TextTooLong(len(request.prompt), self._config.max_context)
        check_queue(self._config, len(self._waiting), request, self._promised_wait)
        self._num_arrived += 1
        state = RequestState(request, 0, self._num_arrived, len(request.prompt), now, packed_prompt)
        self._requests.add(state)
        self._shares.add_request(request.key)
        self._waiting.add(state)

    def force(self, request_id: str, sample: int, tokens: tuple[int, ...], now: float) -> None:
        """Grammars force tokens; an encoder has none."""
        raise InvalidRequest("An encoder has no output tokens.", field="id")

    # ── steps ──

    def plan(self, now: float) -> StepPlan:
        """Return the next step: as many texts as fit."""
        for late in self._requests.take_overdue(now):
            self._end(late, now, late.outcome(error=DeadlineExceeded(0)))
        states: list[RequestState] = []
        parts: list[Part] = []
        budget = self._config.max_step_tokens
        while len(parts) < self._config.max_rows:
            first = self._waiting.first(set(), lambda each: -each.arrival_index)
            if first is None or first.num_prompt > budget:
                break
            state, request = first, first.request
            self._waiting.remove(state)
            self._shares.charge(request.key, state.num_prompt / request.weight)
            state.accounting.admission_time = now
            part = Part(state.sample_id, len(parts), 0, request.prompt, 0, (), False, True, request.second_at)
            parts.append(part)
            states.append(state)
            budget -= state.num_prompt
        if parts:
            self._num_steps += 1
            self._in_step.update(states)
        plan = StepPlan(self._num_steps, tuple(parts), num_tokens=self._config.max_step_tokens - budget)
        if parts:
            self._in_flight.append((plan, states))
        return plan

    def commit(self, result: StepResult, now: float) -> None:
        """Apply the result of the oldest step in flight."""
        plan, states = self._in_flight.popleft()
        assert result.number == plan.number, f"step {plan.number} is due, but the result of {result.number} arrived"
        if result.is_typical:
            self._step_times.record_step(plan.num_tokens, result.seconds)
        for state, part in zip(states, result.parts, strict=True):
            if state in self._in_step:  # else it ended while the step was in flight
                finish = FinishReason.STOP if part.error is None else None
                self._end(state, now, state.outcome(finish=finish, error=part.error, vector=part.vector))

    def _end(self, state: RequestState, now: float, outcome: Outcome) -> None:
        """End a request. Every request ends here, once."""
        if state in self._in_step:
            self._in_step.discard(state)
        else:
            self._waiting.remove(state)
        state.finish()
        self._requests.remove(state)
        self._shares.remove_request(state.request.key)
        self._outcomes.append(outcome._replace(waited=state.accounting.queue_seconds(now)))

    # ── figures and checks ──

    @property
    def is_idle(self) -> bool:
        """Is there no request?"""
        return not len(self._requests)

    def stats(self) -> SchedulerStats:
        """Return figures for metrics."""
        drafts = DraftStats({}, {}, 0, [])
        counts = (len(self._in_step), len(self._waiting), len(self._in_flight))
        return SchedulerStats(*counts, num_preemptions=0, promised_wait=self._promised_wait(), drafts=drafts)

    def load(self) -> SchedulerLoad:
        """Return figures for gateways."""
        return measure_load(self._waiting, self._in_step, self._config.max_rows, self._step_times)

    def check(self) -> None:
        """Assert that every request is in the queue or in a step, and nowhere else."""
        assert sorted(map(id, [*self._in_step, *self._waiting])) == sorted(map(id, self._requests))
        self._shares.check(Counter(state.request.key for state in self._requests))

    def _promised_wait(self) -> float:
        """Return the seconds that a request arriving now would wait, from the measured rate."""
        rate = self._step_times.tokens_per_second
        return self._waiting.num_tokens / rate if rate else 0.0
