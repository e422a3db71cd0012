"""The scheduler: `plan` says what the next step computes, `commit` takes in what came of a step.

There is no prefill phase and no decode phase. Every request has tokens that are computed and tokens that are known, and
a step moves the one towards the other. Running streams come first, each with its newest token; what is left of the
step's budget goes to prompts in chunks, as much as the promised gap between two tokens of a stream allows.

Running requests are in order of importance: they are walked from the head and preempted from the tail, and never one
that is already in this step, so nothing has to be undone.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heappop, heappush

from quire.cache.kv_cache import KVCache, Lease
from quire.config import SchedulerConfig
from quire.scheduler.admission import Admission, Verdict
from quire.scheduler.groups import PrefixGroups
from quire.scheduler.limits import FairShare, Pace, SchedulerStats
from quire.scheduler.queues import RunningList, WaitingQueue
from quire.scheduler.request_state import NO_ROW, RequestState
from quire.scheduler.step_builder import StepBuilder
from quire.types.errors import DeadlineExceeded, DuplicateRequest, InvalidRequest, QuireError
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, Part, PartResult, StepPlan, StepResult, TokenLogprobs

MAX_PASSED = 16  # waiting requests looked at in a step that turn out to wait for another's blocks


class Scheduler:
    """Owns every request from `add` to its last `Outcome`. The clock is an argument and never runs backwards."""

    def __init__(self, cache: KVCache, config: SchedulerConfig) -> None:
        self._cache = cache
        self._config = config
        self._pace = Pace()
        self._shares = FairShare()
        self._waiting = WaitingQueue(self._shares, config.prefix_window, config.ageing)
        self._running = RunningList()
        self._admission = Admission(cache, config, self._running)
        self._groups = PrefixGroups()
        self._rows = list(range(config.max_rows - 1, -1, -1))  # free ones
        self._leaves: list[int] = []  # rows given up since the last plan
        self._families: dict[str, list[RequestState]] = {}  # request id -> its samples that are not over
        self._deadlines: list[tuple[float, str]] = []
        self._in_flight: deque[tuple[StepPlan, list[RequestState]]] = deque()
        self._outcomes: list[Outcome] = []
        self._num_arrived = 0
        self._num_steps = 0
        self._num_preemptions = 0

    # ── requests ──

    def add(self, request: GenerateRequest, now: float) -> None:
        """Take in a request. Raises a QuireError, and keeps nothing, if it cannot be served."""
        if request.id in self._families:
            raise DuplicateRequest(request.id)
        self._admission.check_fits(request)
        self._admission.check_load(self._waiting, self._pace, request.sampling.n)
        asked = len(request.prompt) + (request.sampling.max_tokens or self._admission.max_total)
        family = []
        for sample in range(request.sampling.n):
            self._num_arrived += 1
            state = RequestState(request, sample, self._num_arrived, now, min(asked, self._admission.max_total))
            self._shares.enter(request.key)
            self._waiting.add(state)
            family.append(state)
        self._families[request.id] = family
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.id))

    def cancel(
        self, request_id: str, now: float, reason: FinishReason = FinishReason.CANCELLED, sample: int | None = None
    ) -> bool:
        """End a request, or one sample of it, at once and free all that only it held. False: there is no such one."""
        family = [s for s in self._families.get(request_id, ()) if sample is None or s.sample == sample]
        for state in family:
            self._end(state, now, Outcome(request_id, state.sample, finish=reason, num_hit=state.num_hit))
        return bool(family)

    def cancel_all(self, now: float) -> None:
        """End every request."""
        for request_id in list(self._families):
            self.cancel(request_id, now)

    def force(self, request_id: str, sample: int, tokens: tuple[int, ...], now: float) -> None:
        """Output that a grammar leaves no choice about: it is known at once, and computed together in the next step."""
        state = self._idle_sample(request_id, sample)
        state.num_forced += len(tokens)
        state.is_on_device = False
        self._accept(state, PartResult(tokens), now, num_forced=len(tokens))

    def suggest(self, request_id: str, sample: int, drafts: tuple[int, ...]) -> None:
        """Tokens that may come next: tried in the next step, whose result accepts as many as hold."""
        state = self._idle_sample(request_id, sample)
        state.drafts = drafts[: max(0, state.max_total - len(state.tokens) - 1)]

    def drain(self) -> list[Outcome]:
        """What became of requests since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # ── steps ──

    def plan(self, now: float) -> StepPlan:
        """The next step. It may be asked for while steps are in flight: each running stream is taken to yield one token."""
        self._expire(now)
        step = StepBuilder(self._num_steps + 1, self._config)
        self._make_way(now)
        num_preemptions = self._num_preemptions
        prompts = self._plan_streams(step, now)
        self._plan_prompts(prompts, step, now, admits=num_preemptions == self._num_preemptions)
        plan = step.build(tuple(self._leaves), self._groups.find(self._running.snapshot()))
        if plan.parts or plan.joins:
            self._leaves.clear()
            self._num_steps = step.number
            self._in_flight.append((plan, step.states))
        return plan

    def commit(self, result: StepResult, now: float) -> None:
        """Take in the oldest step in flight. What it means for each request is in `drain`."""
        plan, states = self._in_flight.popleft()
        assert result.number == plan.number, f"result of step {result.number} came while {plan.number} was due"
        self._pace.learn(plan.num_tokens, result.seconds)
        for state, part, came in zip(states, plan.parts, result.parts, strict=True):
            state.num_in_flight -= 1
            if state.is_over:
                continue  # it ended while this step was in flight
            if state.num_stale:
                state.num_stale -= 1
                continue
            if came.error is not None:
                failure = Outcome(state.request.id, state.sample, error=came.error, num_hit=state.num_hit)
                self._end(state, now, failure)
                continue
            if came.prompt_logprobs:
                self._score(state, part, came)
            self._advance(state, part, len(came.tokens), now)
            if came.tokens:
                self._accept(state, came, now)

    def _advance(self, state: RequestState, part: Part, num_accepted: int, now: float) -> None:
        """Move `computed` past what a part has computed: all of it, less the drafts that did not hold."""
        computed = part.start + (1 if part.tokens is None else len(part.tokens))
        if part.num_logits:
            state.expected -= 1
            state.waits = False
            computed -= part.num_logits - 1
            if num_accepted:
                computed += num_accepted - 1
            else:  # the device gave no token: what was planned on its account is void, and the token is computed again
                computed -= 1
                state.num_stale, state.expected, state.is_on_device = state.num_in_flight, 0, False
                state.scheduled = computed
        if state.lease is None:
            return  # preempted meanwhile
        state.computed = computed
        if state.scheduled < computed:
            state.scheduled = computed  # drafts held
        if computed >= state.seal_at:
            self._cache.seal(state.lease, state.tokens, computed, now)
            state.seal_at = (len(state.lease.path) + 1) * self._cache.block_tokens

    def _score(self, state: RequestState, part: Part, came: PartResult) -> None:
        """Tell what is new: after a preemption a part may score positions a second time."""
        news = came.prompt_logprobs[max(0, state.num_scored - part.start) :]
        state.num_scored += len(news)
        if news:
            self._outcomes.append(Outcome(state.request.id, state.sample, num_hit=state.num_hit, prompt_logprobs=news))

    def _accept(self, state: RequestState, came: PartResult, now: float, num_forced: int = 0) -> None:
        """Output tokens: append them up to a stop or the limit, tell, and end the request if it is done."""
        tokens, finish = came.tokens, None
        if state.stops or len(state.tokens) + len(tokens) >= state.max_total:
            tokens, finish = self._cut(state, tokens)
        state.tokens.extend(tokens)
        logprobs: tuple[TokenLogprobs, ...] = came.logprobs[: len(tokens)]
        request = state.request
        self._shares.charge(request.key, self._config.output_cost * len(tokens) / request.weight)
        if finish is None:
            self._outcomes.append(
                Outcome(request.id, state.sample, tokens, logprobs, None, None, state.num_hit, num_forced)
            )
        else:
            self._end(state, now, Outcome(request.id, state.sample, tokens, logprobs, finish, None, state.num_hit, num_forced))

    def _cut(self, state: RequestState, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """The tokens up to the first that ends the request, and why it ends."""
        least = state.num_prompt + state.request.sampling.min_tokens
        known = len(state.tokens)
        for index, token in enumerate(tokens):
            if token in state.stops and known + index + 1 > least:
                return tokens[: index + 1], FinishReason.STOP
            if known + index + 1 >= state.max_total:
                return tokens[: index + 1], FinishReason.LENGTH
        return tokens, None

    # ── planning ──

    def _plan_streams(self, step: StepBuilder, now: float) -> list[RequestState]:
        """Every running stream gets its newest tokens. Answers the running requests that have more to do."""
        prompts = []
        running = self._running.snapshot()
        spare = step.budget - len(running)  # beyond one token each: for drafts and forced tokens
        for state in running:
            if not state.is_streaming:
                prompts.append(state)
                continue
            if state.waits or state.row == NO_ROW:  # or preempted during this walk
                continue
            total = len(state.tokens) + state.expected
            count = total - state.scheduled
            if count <= 0 or total >= state.max_total:
                continue
            if state.drafts:
                state.drafts = state.drafts[: step.num_scored]
            room = total + len(state.drafts)
            if room > state.capacity and not self._make_room(state, room, step, now):
                continue
            if count == 1 and state.is_on_device and not state.drafts:
                step.add_next(state)
            else:
                state.drafts = state.drafts[: max(0, spare - (count - 1))]
                step.add(state, min(count, 1 + max(0, spare)))
                spare -= count - 1 + len(state.drafts)
        return prompts

    def _plan_prompts(self, prompts: list[RequestState], step: StepBuilder, now: float, admits: bool) -> None:
        """What is left of the step goes to prompts: an equal share each, then the rest in order of importance."""
        allowance = self._prompt_allowance(step)
        grants: list[tuple[RequestState, int]] = []
        prompts = [state for state in prompts if state.row != NO_ROW and state.remaining > 0]
        sharers = min(len(prompts) + len(self._waiting), self._config.max_partial_prompts)
        share = max(allowance // max(sharers, 1), min(self._cache.block_tokens, allowance))
        passed: set[RequestState] = set()
        while allowance > 0:
            state = prompts.pop(0) if prompts else self._admit(step, passed, now) if admits else None
            if state is None:
                break
            count = min(state.remaining, share, allowance, step.most(state))
            allowance -= count
            grants.append((state, count))
        for state, count in grants:
            num_more = min(state.remaining - count, allowance)
            allowance -= num_more
            count = min(count + num_more, step.most(state))
            if count and state.row != NO_ROW and self._make_room(state, state.scheduled + count, step, now):
                step.add(state, count)
                self._shares.charge(state.request.key, count / state.request.weight)

    def _prompt_allowance(self, step: StepBuilder) -> int:
        """Prompt tokens that this step may have without making running streams wait longer than promised."""
        if not step.parts:
            return step.budget
        within = self._pace.tokens_within(self._config.stream_gap) - len(step.parts)
        return int(min(max(within, self._config.min_prompt_tokens), step.budget))

    def _admit(self, step: StepBuilder, passed: set[RequestState], now: float) -> RequestState | None:
        """The next waiting request that can start, started; None if none can."""
        while self._rows and len(passed) < MAX_PASSED:
            state = self._waiting.next(now, passed, self._admission.cached_tokens)
            if state is None:
                return None
            lease = self._admission.lease(state, self._families[state.request.id], now)
            if lease is Verdict.FULL:
                return None
            if isinstance(lease, Verdict):
                passed.add(state)
                continue
            self._start(state, lease, now)
            step.join(state)
            return state
        return None

    def _start(self, state: RequestState, lease: Lease, now: float) -> None:
        self._waiting.remove(state)
        state.lease, state.row = lease, self._rows.pop()
        state.computed = state.scheduled = lease.num_hit
        state.capacity = len(lease.blocks) * self._cache.block_tokens
        state.num_told = 0
        state.seal_at = 0 if lease.copy is not None else (len(lease.path) + 1) * self._cache.block_tokens
        if state.admitted is None:
            state.admitted, state.num_hit = now, lease.num_hit
        self._running.add(state)
        self._groups.joined()

    def _make_room(self, state: RequestState, num_tokens: int, step: StepBuilder, now: float) -> bool:
        """Blocks for `num_tokens`, by preempting from the tail if need be. False: not in this step."""
        assert state.lease is not None
        while not self._cache.extend(state.lease, num_tokens, now):
            victim = next((s for s in self._running.from_tail() if s.last_step != step.number), None)
            if victim is None or victim.order < state.order:
                return False
            self._preempt(victim, now)
            if victim is state:
                return False
        state.capacity = len(state.lease.blocks) * self._cache.block_tokens
        return True

    def _make_way(self, now: float) -> None:
        """If someone more urgent waits and cannot start, the least important of those who run step back."""
        urgent = self._waiting.top_priority()
        while urgent is not None and len(self._running):
            tail = next(self._running.from_tail())
            if tail.urgency <= urgent or self._can_start(now):
                return
            self._preempt(tail, now)

    def _can_start(self, now: float) -> bool:
        state = self._waiting.next(now, set(), self._admission.cached_tokens)
        return state is not None and bool(self._rows) and self._admission.could_start(state, now)

    def _preempt(self, state: RequestState, now: float) -> None:
        """Put a request off. What it has computed stays cached, so that it resumes where it was if nobody needs the room."""
        self._running.remove(state)
        self._vacate(state, now, session=None)
        state.urgency = state.request.priority
        state.is_streaming, state.is_on_device, state.waits, state.drafts = False, False, False, ()
        self._num_preemptions += 1
        self._waiting.add(state)

    # ── endings ──

    def _end(self, state: RequestState, now: float, outcome: Outcome) -> None:
        """Every request ends here, once."""
        if state.lease is None:
            self._waiting.remove(state)
        else:
            self._running.remove(state)
            self._vacate(state, now, state.request.session if not state.sample else None)
        state.is_over = True
        family = self._families[state.request.id]
        family.remove(state)
        if not family:
            del self._families[state.request.id]
        self._shares.leave(state.request.key)
        if state.admitted is not None:
            self._pace.learn_service(now - state.admitted)
        self._outcomes.append(outcome)

    def _vacate(self, state: RequestState, now: float, session: str | None) -> None:
        assert state.lease is not None
        self._admission.ended(state.lease)
        self._cache.release(state.lease, state.tokens, state.computed, now, session)
        self._rows.append(state.row)
        self._leaves.append(state.row)
        self._groups.left(state.row)
        state.lease, state.row = None, NO_ROW
        state.computed = state.scheduled = state.capacity = state.num_told = 0

    def _expire(self, now: float) -> None:
        self._cache.expire_sessions(now)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heappop(self._deadlines)
            for state in list(self._families.get(request_id, ())):
                error = DeadlineExceeded(state.num_output)
                self._end(state, now, Outcome(request_id, state.sample, error=error, num_hit=state.num_hit))

    def _idle_sample(self, request_id: str, sample: int) -> RequestState:
        for state in self._families.get(request_id, ()):
            if state.sample == sample and not state.num_in_flight:
                return state
        raise InvalidRequest(f"Request {request_id!r} has no sample {sample} that waits for tokens.", field="id")

    # ── answers ──

    @property
    def is_idle(self) -> bool:
        """Is there no request?"""
        return not self._families

    def stats(self) -> SchedulerStats:
        """Numbers for metrics."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_in_flight=len(self._in_flight),
            num_preemptions=self._num_preemptions,
            promised_wait=self._admission.promised_wait(self._waiting, self._pace),
        )

    def check(self) -> None:
        """All invariants, the cache's too. Expensive: for tests, and for an idle engine."""
        running, waiting = list(self._running), list(self._waiting)
        live = [state for family in self._families.values() for state in family]
        assert sorted(map(id, running + waiting)) == sorted(map(id, live)), "a request is lost or in two places"
        assert sorted([*self._rows, *(state.row for state in running)]) == list(range(self._config.max_rows))
        assert running == sorted(running, key=lambda state: state.order)
        assert all(state.lease is not None for state in running) and all(state.lease is None for state in waiting)
        assert len(waiting) == len(self._waiting)
        self._shares.check(Counter(state.request.key for state in live))
        for state in live:
            assert not state.is_over
            state.check()
        self._cache.check()
