"""The scheduler: `plan` says what the next step computes, `commit` takes in what came of a step.

There is no prefill phase and no decode phase. Every request has tokens that are computed and tokens that are known, and
a step moves the one towards the other. Running streams come first, each with its newest token; what is left of the
step's budget goes to prompts in chunks, as much as the promised gap between two tokens of a stream allows.

Running requests are in order of importance: they are walked from the head and preempted from the tail, and never one
that is already in this step, so nothing has to be undone.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque

from quire.cache.kv_cache import KVCache, Lease
from quire.config import SchedulerConfig
from quire.scheduler.admission import Admission, Verdict
from quire.scheduler.book import RequestBook
from quire.scheduler.groups import PrefixGroups
from quire.scheduler.limits import FairShare, Pace, stretched
from quire.scheduler.queues import RunningList, WaitingQueue, Walk
from quire.scheduler.request_state import NO_ROW, RequestState
from quire.scheduler.stats import SchedulerStats
from quire.scheduler.step_builder import StepBuilder
from quire.types.errors import DeadlineExceeded, DuplicateRequest
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, Part, PartResult, StepPlan, StepResult

NO_BLOCKS: tuple[int, ...] = ()
# Makes a named tuple without the cost of its own constructor: for the two loops over all streams.
new_tuple = tuple.__new__


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
        self.fewest_blocks = -(-self._admission.max_total // cache.block_tokens)  # that the longest request needs
        self._groups = PrefixGroups(cache.block_tokens)
        self._rows = list(range(config.max_rows - 1, -1, -1))  # free ones
        self._leaves: list[int] = []  # rows given up since the last plan
        self._book = RequestBook()
        self._in_flight: deque[tuple[StepPlan, StepBuilder]] = deque()
        self._outcomes: list[Outcome] = []
        self._num_arrived = 0
        self._num_steps = 0
        self._num_preemptions = 0

    # ── requests ──

    def add(self, request: GenerateRequest, now: float, prompt: array[int] | None = None) -> None:
        """Take in a request, its prompt packed or not. Raises a QuireError and keeps nothing if it cannot be served."""
        if request.id in self._book:
            raise DuplicateRequest(request.id)
        self._admission.check_fits(request)
        self._admission.check_load(self._waiting, self._pace, request)
        asked = len(request.prompt) + (request.sampling.max_tokens or self._admission.max_total)
        for sample in request.open_samples:
            self._num_arrived += 1
            state = RequestState(request, sample, self._num_arrived, now, min(asked, self._admission.max_total), prompt)
            self._book.enter(state)
            self._shares.enter(request.key)
            self._waiting.add(state)

    def cancel(
        self, request_id: str, now: float, reason: FinishReason = FinishReason.CANCELLED, sample: int | None = None
    ) -> bool:
        """End a request, or one sample of it, at once and free all that only it held. False: there is no such one."""
        family = [s for s in self._book.family(request_id) if sample is None or s.sample == sample]
        for state in family:
            self._end(state, now, Outcome(request_id, state.sample, finish=reason, num_hit=state.num_hit))
        return bool(family)

    def cancel_all(self, now: float) -> None:
        """End every request."""
        for state in list(self._book):
            self.cancel(state.request.id, now)

    def force(self, request_id: str, sample: int, tokens: tuple[int, ...], now: float) -> None:
        """Output that a grammar leaves no choice about: it is known at once, and computed together in the next step."""
        state = self._book.idle_sample(request_id, sample)
        state.is_on_device = False
        state.refresh()
        self._accept(state, PartResult(tokens), now, is_forced=True)

    def suggest(self, request_id: str, sample: int, drafts: tuple[int, ...]) -> None:
        """Tokens that may come next: tried in the next step, whose result accepts as many as hold.

        They are forgotten if the request has more to compute than its newest token, after a preemption for example.
        """
        state = self._book.idle_sample(request_id, sample)
        if state.is_streaming:
            state.drafts = drafts[: max(0, state.max_total - len(state.tokens) - 1)]
            state.refresh()

    def drain(self) -> list[Outcome]:
        """What became of requests since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # ── steps ──

    def plan(self, now: float) -> StepPlan:
        """The next step. Asked for while steps are in flight, it takes each running stream to yield one token."""
        self._expire(now)
        step = StepBuilder(self._num_steps + 1, self._config)
        self._make_way(now)
        num_preemptions = self._num_preemptions
        prompts = self._plan_streams(step, now)
        if prompts or len(self._waiting):
            self._plan_prompts(prompts, step, now, num_preemptions)
        plan = step.build(tuple(self._leaves), self._groups.find(self._running.snapshot(), step.promised))
        if plan.parts or plan.joins:
            self._leaves.clear()
            self._num_steps = step.number
            self._in_flight.append((plan, step))
        return plan

    def commit(self, result: StepResult, now: float) -> None:
        """Take in the oldest step in flight. What it means for each request is in `drain`."""
        plan, step = self._in_flight.popleft()
        assert result.number == plan.number, f"result of step {result.number} came while {plan.number} was due"
        self._pace.learn(plan.num_tokens, result.seconds)
        tell = self._outcomes.append
        for state, part, came in zip(step.states, plan.parts, result.parts, strict=True):
            state.num_in_flight -= 1
            tokens, logprobs, error, _ = came
            if state.is_plain_decode and part.tokens is None and len(tokens) == 1 and error is None:
                # One token more of a stream that goes on: what nearly every part of a full house is, hence by itself.
                known = state.tokens
                if tokens[0] not in state.stops and len(known) + 1 < state.max_total:
                    state.expected -= 1
                    state.computed = computed = part.start + 1
                    known.append(tokens[0])
                    if computed >= state.seal_at:
                        self._seal(state, now)
                    news = (state.request.id, state.sample, tokens, logprobs, None, None, 0, 0, (), 0.0)
                    tell(new_tuple(Outcome, news))
                    continue
            if error is not None:
                self._withdraw(state, step, now)
            self._take_in(state, part, came, now)
        self._cache.fulfil(step.promised.values())

    def _withdraw(self, state: RequestState, step: StepBuilder, now: float) -> None:
        """A request's part of a step failed: those start again who took its blocks, or later ones, for computed."""
        steps = [step, *(later for _, later in self._in_flight)]
        promised = [each for step in steps for each in step.promised.get(state, ())]
        for other in self._admission.withdraw(promised, now):
            if other is not state:
                other.void()
                self._preempt(other, now)

    def _take_in(self, state: RequestState, part: Part, came: PartResult, now: float) -> None:
        """Any result of a part."""
        if state.is_over:
            return  # it ended while this step was in flight
        if state.num_stale:
            state.num_stale -= 1
            state.refresh()
        elif came.error is not None:
            self._end(state, now, state.failure(came.error))
        else:
            if came.prompt_logprobs and (news := state.unscored(part, came.prompt_logprobs)):
                told = Outcome(state.request.id, state.sample, num_hit=state.num_hit, prompt_logprobs=news)
                self._outcomes.append(told)
            state.advance(part, len(came.tokens))
            if came.tokens:
                self._accept(state, came, now)
            if state.lease is not None and state.computed >= state.seal_at:
                self._seal(state, now)

    def _seal(self, state: RequestState, now: float) -> None:
        """Full blocks can be found by others. Output is charged here, a block at a time: often enough to be fair."""
        assert state.lease is not None
        self._cache.seal(state.lease, state.tokens, state.computed, now)
        state.seal_at = (len(state.lease.path) + 1) * self._cache.block_tokens
        self._charge_output(state)

    def _charge_output(self, state: RequestState) -> None:
        cost = self._config.output_cost * state.uncharged()
        self._shares.charge(state.request.key, cost / state.request.weight)

    def _accept(self, state: RequestState, came: PartResult, now: float, is_forced: bool = False) -> None:
        """Output tokens: append them up to a stop or the limit, tell, and end the request if it is done."""
        tokens, finish = state.cut(came.tokens)
        state.tokens.extend(tokens)
        logprobs, num_forced = came.logprobs[: len(tokens)], len(tokens) if is_forced else 0
        told = Outcome(state.request.id, state.sample, tokens, logprobs, finish, None, state.num_hit, num_forced)
        if finish is None:
            self._outcomes.append(told)
        else:
            self._end(state, now, told)

    # ── planning ──

    def _plan_streams(self, step: StepBuilder, now: float) -> list[RequestState]:
        """Every running stream gets its newest tokens. Answers the running requests that have more to do."""
        prompts = []
        running = self._running.snapshot()
        spare = step.budget - len(running)  # beyond one token each: for drafts and forced tokens
        number, tell, whose, num_next = step.number, step.parts.append, step.states.append, 0
        for state in running:
            if state.is_plain_decode:  # a thousand times a step, hence without calls but of tuples' own constructor
                start = state.scheduled
                if start + 1 >= state.max_total:
                    continue  # its last token is on the way
                new_blocks = NO_BLOCKS
                if start >= state.capacity:
                    if not self._make_room(state, start + 1, step, now):
                        continue
                    new_blocks = state.unsent_blocks()
                tell(new_tuple(Part, (state.id, state.row, start, None, 1, new_blocks, False)))
                whose(state)
                state.scheduled = start + 1
                state.expected += 1
                state.num_in_flight += 1
                state.last_step = number
                num_next += 1
            elif not state.is_streaming:
                prompts.append(state)
            elif not state.waits and state.row != NO_ROW:  # or it was preempted during this walk
                spare -= self._plan_several(state, step, spare, now)
        step.budget -= num_next
        return prompts

    def _plan_several(self, state: RequestState, step: StepBuilder, spare: int, now: float) -> int:
        """A stream with forced tokens or drafts. Answers how many tokens beyond one that took."""
        if state.expected or state.remaining <= 0:
            return 0  # what it would compute is still being sampled
        count = min(state.remaining, 1 + max(0, spare))
        state.drafts = state.drafts[: max(0, min(spare - (count - 1), step.num_scored))]
        extra = count - 1 + len(state.drafts)
        if not self._make_room(state, state.scheduled + 1 + extra, step, now):
            return 0
        step.add(state, count)
        return extra

    def _plan_prompts(self, prompts: list[RequestState], step: StepBuilder, now: float, num_preemptions: int) -> None:
        """What is left of the step goes to prompts. If someone was preempted in this plan, nobody is admitted by it."""
        prompts = [state for state in prompts if state.row != NO_ROW and state.remaining > 0]
        waiting = self._waiting.walk(now, self._admission.cached_tokens, num_preemptions != self._num_preemptions)
        allowed = self._pace.prompt_tokens(self._config, len(step.parts), step.budget)
        most, num_begun = min(stretched(allowed), step.budget), sum(state.remaining for state in prompts)
        allowance = most if most > allowed and waiting.can_end_within(most - num_begun) else allowed
        while allowance > 0 and (num_given := self._share_out(allowance, prompts, waiting, step, now)):
            if not waiting.num_skipped or num_preemptions != self._num_preemptions:
                break
            step.promise(self._cache, now)  # those who were skipped may have waited for what is in this step now
            prompts, waiting, allowance = [], waiting.again(), allowance - num_given

    def _share_out(self, most: int, prompts: list[RequestState], waiting: Walk, step: StepBuilder, now: float) -> int:
        """Give an equal share each, then the rest in order of importance; answers how much was taken."""
        before, grants = step.budget, list[tuple[RequestState, int]]()
        sharers = min(len(prompts) + len(self._waiting), self._config.max_partial_prompts)
        share = max(most // max(sharers, 1), min(self._cache.block_tokens, most))
        self._admission.begin_round()
        while most > 0 and (state := self._next_prompt(prompts, waiting, step, now)) is not None:
            count = min(state.remaining, share, most, step.most(state))
            most -= count
            grants.append((state, count))
        for state, count in grants:
            num_more = min(state.remaining - count, most)
            most -= num_more
            count = min(count + num_more, step.most(state))
            if count and state.row != NO_ROW and self._make_room(state, state.scheduled + count, step, now):
                step.add(state, count)
                self._shares.charge(state.request.key, count / state.request.weight)
        return before - step.budget

    def _is_outranked(self, state: RequestState) -> bool:
        """Does someone more urgent than this running request wait?"""
        urgent = self._waiting.top_priority()
        return urgent is not None and urgent < state.urgency

    def _next_prompt(
        self, prompts: list[RequestState], waiting: Walk, step: StepBuilder, now: float
    ) -> RequestState | None:
        """Whose prompt comes next: a running request's, unless one that is more urgent waits and can start."""
        while True:
            is_open = self._rows and (not prompts or self._is_outranked(prompts[0]))
            candidate = waiting.candidate() if is_open else None
            if candidate is None or (prompts and prompts[0].urgency <= candidate.urgency):
                return prompts.pop(0) if prompts else None
            lease = self._admission.lease(candidate, self._book.family(candidate.request.id), now)
            if lease is Verdict.FULL:
                waiting.stop()
            elif lease is Verdict.PASSED:
                waiting.skip(candidate)
                prompts.sort(key=lambda state: state.order)  # it may have lent its urgency
            else:
                self._start(candidate, lease, now)
                step.join(candidate)
                return candidate

    def _start(self, state: RequestState, lease: Lease, now: float) -> None:
        self._waiting.remove(state)
        state.start(lease, self._rows.pop(), self._cache.block_tokens, now)
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
        while len(self._running) and len(self._waiting):
            tail = next(self._running.from_tail())
            if not self._is_outranked(tail) or self._can_start(now):
                return
            self._preempt(tail, now)

    def _can_start(self, now: float) -> bool:
        state = self._waiting.walk(now, self._admission.cached_tokens).candidate()
        return state is not None and bool(self._rows) and self._admission.could_start(state, now)

    def _preempt(self, state: RequestState, now: float) -> None:
        """Put a request off. What it has computed stays cached: it resumes where it was if nobody needs the room."""
        self._running.remove(state)
        self._vacate(state, now, session=None)
        state.urgency = state.request.priority
        state.is_streaming = state.is_on_device = state.waits = state.is_plain_decode = False
        state.drafts = ()
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
        state.is_over, state.is_plain_decode = True, False
        self._charge_output(state)
        self._book.leave(state)
        self._shares.leave(state.request.key)
        if state.admitted is not None:
            self._pace.learn_service(now - state.admitted)
        self._outcomes.append(outcome._replace(waited=state.waited(now)))

    def _vacate(self, state: RequestState, now: float, session: str | None) -> None:
        assert state.lease is not None
        self._admission.ended(state.lease)
        computed = min(state.computed, len(state.tokens))  # a stop may have cut off drafts that were computed
        self._cache.release(state.lease, state.tokens, computed, now, session)
        self._rows.append(state.row)
        self._leaves.append(state.row)
        self._groups.left(state.row)
        state.lease, state.row = None, NO_ROW
        state.computed = state.scheduled = state.capacity = state.num_sent_blocks = 0

    def _expire(self, now: float) -> None:
        self._cache.expire_sessions(now)
        for state in self._book.overdue(now):
            self._end(state, now, state.failure(DeadlineExceeded(state.num_output)))

    # ── answers ──

    @property
    def is_idle(self) -> bool:
        """Is there no request?"""
        return not len(self._book)

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
        assert sorted([*self._rows, *(state.row for state in self._running)]) == list(range(self._config.max_rows))
        self._book.check(self._running, self._waiting)
        self._shares.check(Counter(state.request.key for state in self._book))
        self._cache.check()
