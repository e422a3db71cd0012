"""The scheduler: `plan` decides what the next step computes, `commit` applies the result of a step.

There are no prefill steps and no decode steps. Every request has computed tokens and known tokens, and a step moves the
first count towards the second. Decoding requests are planned first, each with its newest token; the rest of the step's
budget goes to prompts in chunks, as far as the promised gap between two tokens of a stream allows.

Running requests are sorted by importance: they are planned from the head and preempted from the tail. A request that is
already in this step is never preempted, so nothing has to be undone.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque

from quire.cache.kv_cache import KVCache, Lease
from quire.config import SchedulerConfig
from quire.scheduler.admission import Admission, Deferral
from quire.scheduler.groups import PrefixGroups
from quire.scheduler.limits import FairShare, StepTimeModel, with_remainder
from quire.scheduler.live_requests import LiveRequests
from quire.scheduler.live_states import LiveStates
from quire.scheduler.queues import QueueScan, RunningList, WaitingQueue
from quire.scheduler.request_state import Phase, RequestState
from quire.scheduler.request_table import RequestTable
from quire.scheduler.speculation import Speculation
from quire.scheduler.stats import SchedulerLoad, SchedulerStats, measure_load
from quire.scheduler.step_builder import StepBuilder
from quire.types.errors import DeadlineExceeded, DuplicateRequest
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, Part, PartResult, StepPlan, StepResult, decode_part, token_outcome


class Scheduler(LiveRequests):
    """Owns every request from `add` to its last `Outcome`. The clock is an argument and never runs backwards."""

    def __init__(self, cache: KVCache, config: SchedulerConfig, speculation: Speculation | None = None) -> None:
        self._cache = cache
        self._speculation = speculation or Speculation(())
        self._config = config
        self._step_times = StepTimeModel()
        self._shares = FairShare()
        self._waiting = WaitingQueue(self._shares, config.prefix_window, config.ageing)
        self._running = RunningList()
        self._admission = Admission(cache, config, self._running)
        self.fewest_blocks = -(-self._admission.max_total // cache.block_tokens)  # needed by the longest request
        self._live_states = LiveStates(cache, self._admission)
        self._groups = PrefixGroups(cache.block_tokens)
        self._free_rows = list(range(config.max_rows - 1, -1, -1))
        self._leaves: list[int] = []  # rows released since the last plan
        self._requests = RequestTable()
        self._in_flight: deque[tuple[StepPlan, StepBuilder]] = deque()
        self._outcomes: list[Outcome] = []
        self._to_seal: list[tuple[RequestState, Lease | None]] = []  # in `drain`: their verified drafts filled a block
        self._num_arrived = self._num_steps = self._num_preemptions = 0
        self._now = 0.0  # of the last plan or commit

    # ── requests ──

    def add(self, request: GenerateRequest, now: float, packed_prompt: array[int] | None = None) -> None:
        """Queue a request. Raises a QuireError, and keeps nothing, if it cannot be served."""
        if request.id in self._requests:
            raise DuplicateRequest(request.id)
        self._admission.check_fits(request)
        self._admission.check_load(self._waiting, self._step_times, request)
        most = self._admission.max_total
        max_total = min(len(request.prompt) + (request.sampling.max_tokens or most), most)
        for sample in request.unfinished_samples:
            self._num_arrived += 1
            state = RequestState(request, sample, self._num_arrived, max_total, now, packed_prompt)
            self._requests.add(state)
            self._shares.add_request(request.key)
            self._waiting.add(state)

    def force(self, request_id: str, sample: int, tokens: tuple[int, ...], now: float) -> None:
        """Append output that a grammar forces: known at once, and computed together in the next step."""
        state = self._requests.idle_sample(request_id, sample)
        accepted, finish = state.force(tokens)
        self._report(state, state.outcome(accepted, finish=finish, num_forced=len(accepted)), now)

    # ── steps ──

    @property
    def wants_results(self) -> bool:
        """Should the steps in flight be committed before the next one is planned?"""
        has_newcomers = bool(self._free_rows) and self._waiting.has_admissible
        return self._speculation.wants_results(self._running.snapshot(), has_newcomers)

    def plan(self, now: float) -> StepPlan:
        """Return the next step. With steps in flight, it assumes that each of them yields one token per stream."""
        self._now = now
        self._expire(now)
        step = StepBuilder(self._num_steps + 1, self._config, self._cache, now, bool(self._in_flight))
        self._preempt_for_urgent(now)
        num_preemptions = self._num_preemptions
        has_newcomers = bool(self._free_rows) and self._waiting.has_admissible
        self._speculation.suggest(self._running.snapshot(), has_newcomers)
        prompts = self._plan_streams(step, now)
        if prompts or len(self._waiting):
            self._plan_prompts(prompts, step, now, num_preemptions)
        self._waiting.end_plan(step.has_joins)
        plan = step.build(tuple(self._leaves), self._groups.find(self._running.snapshot(), step.promises))
        if plan.parts or plan.joins:
            self._leaves.clear()
            self._num_steps = step.number
            self._in_flight.append((plan, step))
        elif num_preemptions != self._num_preemptions and not self._in_flight:
            return self.plan(now)  # the only running request was preempted: admit requests
        return plan

    def commit(self, result: StepResult, now: float) -> None:
        """Apply the result of the oldest step in flight. The outcomes are in `drain`."""
        plan, step = self._in_flight.popleft()
        assert result.number == plan.number, f"step {plan.number} is due, but the result of {result.number} arrived"
        if result.is_typical:
            self._step_times.record_step(plan.num_tokens, result.seconds)
            self._step_times.pace.record_step(plan, result)
            self._speculation.record_step(plan.parts, plan.num_tokens, result.seconds, step.is_usual)
        report = self._outcomes.append
        for state, part, part_result in zip(step.states, plan.parts, result.parts, strict=True):
            state.num_in_flight -= 1
            tokens, logprobs, error, _, _ = part_result
            if state.is_plain_decode and len(tokens) == 1 and error is None:
                # Hot path, up to a thousand times a step. Parts are read only off it: their attributes are slow.
                known, token, computed = state.tokens, tokens[0], state.computed + 1
                if computed == len(known) and computed + 1 < state.max_total and token not in state.stops:
                    state.expected -= 1
                    state.computed = computed
                    known.append(token)
                    if computed >= state.seal_at:
                        self._seal(state, now)
                    report(token_outcome(state.request_id, state.sample, tokens, logprobs))
                    continue
            elif error is None and state.awaits_result and state.take_verified(part, tokens):
                drafts = self._speculation.record(state.sample_id, part.num_logits - 1, tokens, len(tokens))
                report(token_outcome(state.request_id, state.sample, tokens, logprobs, drafts))
                if state.computed >= state.seal_at:
                    self._to_seal.append((state, state.lease))
                continue
            if error is not None:
                self._restart_dependents(state, step, now)
            self._apply(state, part, part_result, now)
        self._cache.fulfil(step.promises.values())
        self._now = now

    def drain(self) -> list[Outcome]:
        """Return the outcomes since the last call; let others find the blocks that verified drafts filled.

        With two steps in flight this is after the next launch, so that the device does not wait for it.
        """
        for state, lease in self._to_seal:
            if lease is not None and state.lease is lease and state.computed >= state.seal_at:
                self._seal(state, self._now)
        self._to_seal.clear()
        return super().drain()

    def _restart_dependents(self, state: RequestState, step: StepBuilder, now: float) -> None:
        """Preempt the requests that treated a failed part's blocks, or later ones of its request, as computed."""
        steps = [step, *(later for _, later in self._in_flight)]
        promise = [block for step in steps for block in step.promises.get(state, ())]
        for dependent in self._admission.withdraw(promise, now):
            if dependent is not state:
                dependent.discard_in_flight()
                self._preempt(dependent, now)

    def _apply(self, state: RequestState, part: Part, result: PartResult, now: float) -> None:
        """Apply any result of a part."""
        if state.phase is Phase.FINISHED:
            self._live_states.close(state, part, result, now)  # it ended while this step was in flight
        elif state.has_stale_results:
            state.drop_stale_result()
        elif result.error is not None:
            self._end(state, now, state.outcome(error=result.error))
        else:
            if result.prompt_logprobs and (scores := state.take_unreported(part, result.prompt_logprobs)):
                self._outcomes.append(state.outcome(prompt_logprobs=scores))
            state.advance(part, len(result.tokens))
            if not self._live_states.settle(state, part, len(result.tokens), now):
                self._preempt(state, now, has_state=False)
            tokens, finish = state.accept(result.tokens)
            drafts = self._speculation.record(state.sample_id, part.num_logits - 1, result.tokens, len(tokens))
            if result.vector:
                self._end(state, now, state.outcome(finish=FinishReason.STOP, vector=result.vector))
            elif tokens:
                logprobs = result.logprobs[: len(tokens)]
                self._report(state, state.outcome(tokens, logprobs=logprobs, finish=finish, drafts=drafts), now)
            if state.lease is not None and state.computed >= state.seal_at:
                self._seal(state, now)

    def _seal(self, state: RequestState, now: float) -> None:
        """Let others find its full blocks. Output is charged here, once per block: often enough to be fair."""
        assert state.lease is not None
        self._cache.seal(state.lease, state.tokens, state.computed, now)
        state.update_seal_at(self._cache.block_tokens)
        self._shares.charge(state.request.key, state.take_output_cost(self._config.output_cost))

    def _report(self, state: RequestState, outcome: Outcome, now: float) -> None:
        """Add an outcome with new output; end the request if it is finished."""
        if outcome.finish is None:
            self._outcomes.append(outcome)
        else:
            self._end(state, now, outcome)

    # ── planning ──

    def _plan_streams(self, step: StepBuilder, now: float) -> list[RequestState]:
        """Add the newest tokens of every decoding request; return the prefilling requests."""
        prompts, running = list[RequestState](), self._running.snapshot()
        spare = step.budget - len(running)  # beyond one token each: for drafts and forced tokens
        number, add_part, add_state, num_plain = step.number, step.parts.append, step.states.append, 0
        for state in running:
            if state.is_plain_decode:  # hot path, up to a thousand times a step
                start, end = state.scheduled, state.scheduled + 1
                if end >= state.max_total:
                    continue  # its last token is in flight
                if start < state.capacity:
                    add_part(decode_part(state.sample_id, state.row, start))
                elif self._make_room(state, end, step, now):
                    add_part(decode_part(state.sample_id, state.row, start, state.take_unsent_blocks()))
                    step.add_tables(state)
                else:
                    continue
                add_state(state)
                state.scheduled = end
                state.expected += 1
                state.num_in_flight += 1
                state.last_step = number
                num_plain += 1
            elif state.phase is Phase.PREFILLING:
                prompts.append(state)
            elif state.phase is Phase.DECODING and not state.awaits_result:  # not if preempted in this loop
                tokens = state.schedule_drafts(min(spare, step.scored_budget), number)
                spare -= step.add_drafts(state, tokens) if tokens else self._plan_several(state, step, spare, now)
        step.budget -= num_plain
        return prompts

    def _plan_several(self, state: RequestState, step: StepBuilder, spare: int, now: float) -> int:
        """Add a decoding request with forced tokens or drafts. Return how many tokens beyond one that takes."""
        if state.expected or state.remaining <= 0:
            return 0  # the token to compute is still being sampled
        count = min(state.remaining, 1 + max(0, spare))
        most = min(spare - (count - 1), step.scored_budget) if count == state.remaining else 0
        state.limit_drafts(most if count == 1 or not self._cache.has_states else 0)  # a state goes back to the start
        if not self._make_room(state, state.scheduled + count, step, now):
            return 0
        self._live_states.branch(state, state.scheduled + count, now)
        return step.add(state, count) - 1

    def _plan_prompts(self, prompts: list[RequestState], step: StepBuilder, now: float, num_preemptions: int) -> None:
        """Give the rest of the step to prompts. If this plan has preempted a request, it admits none."""
        prompts = [state for state in prompts if state.is_running and state.remaining > 0]
        scan = self._waiting.scan(now, self._admission.cached_tokens, num_preemptions != self._num_preemptions)
        allowed = self._step_times.prompt_tokens(self._config, len(step.parts), step.budget)
        most = min(with_remainder(allowed), step.budget)
        num_started = sum(state.remaining for state in prompts)
        limit = most if most > allowed and scan.fits_all_within(most - num_started) else allowed
        while limit > 0 and (num_added := self._share_out(limit, prompts, scan, step, now)):
            if not scan.num_skipped or num_preemptions != self._num_preemptions:
                break
            step.promise()  # skipped requests may have waited for blocks that are now in this step
            prompts, scan, limit = [], scan.restart(), limit - num_added

    def _share_out(
        self, limit: int, prompts: list[RequestState], scan: QueueScan, step: StepBuilder, now: float
    ) -> int:
        """Give each prompt an equal share of `limit` tokens, then the rest by importance. Return the tokens used."""
        budget_before, grants = step.budget, list[tuple[RequestState, int]]()
        num_sharers = min(len(prompts) + len(self._waiting), self._config.max_partial_prompts)
        share = max(limit // max(num_sharers, 1), min(self._cache.block_tokens, limit))
        self._admission.begin_round()
        while limit > 0 and (state := self._next_prompt(prompts, scan, step, now)) is not None:
            count = min(state.remaining, share, limit, step.max_tokens_of(state))
            limit -= count
            grants.append((state, count))
        for state, count in grants:
            num_more = min(state.remaining - count, limit)
            limit -= num_more
            count = min(count + num_more, step.max_tokens_of(state))
            if count and state.is_running and self._make_room(state, state.scheduled + count, step, now):
                step.add(state, count)
                self._shares.charge(state.request.key, count / state.request.weight)
        return budget_before - step.budget

    def _is_outranked(self, state: RequestState) -> bool:
        """Is a more urgent request than this running one waiting?"""
        top_priority = self._waiting.top_priority()
        return top_priority is not None and top_priority < state.urgency

    def _next_prompt(
        self, prompts: list[RequestState], scan: QueueScan, step: StepBuilder, now: float
    ) -> RequestState | None:
        """Return the next running prompt, or admit a waiting request if it is more urgent and can start."""
        while True:
            can_admit = self._free_rows and (not prompts or self._is_outranked(prompts[0]))
            candidate = scan.candidate() if can_admit else None
            if candidate is None or (prompts and prompts[0].urgency <= candidate.urgency):
                return prompts.pop(0) if prompts else None
            lease = self._admission.lease(candidate, self._requests.samples(candidate.request_id), now)
            if lease is Deferral.STOP:
                scan.stop()
            elif lease is Deferral.SKIP:
                scan.skip(candidate)
                prompts.sort(key=lambda state: state.order)  # the candidate may have lent its urgency
            else:
                self._admit(candidate, lease, step, now)
                return candidate

    def _admit(self, state: RequestState, lease: Lease, step: StepBuilder, now: float) -> None:
        self._waiting.remove(state)
        state.admit(lease, self._free_rows.pop(), self._cache.block_tokens, step.number, now)
        self._running.add(state)
        self._groups.invalidate()
        step.join(state)

    def _make_room(self, state: RequestState, num_tokens: int, step: StepBuilder, now: float) -> bool:
        """Get blocks for `num_tokens`, preempting from the tail if needed. Return whether the step can include it."""
        assert state.lease is not None
        while not self._cache.extend(state.lease, num_tokens, now, state.computed):
            victim = next((s for s in self._running.from_tail() if s.last_step != step.number), None)
            if victim is None or victim.order < state.order:
                return False
            self._preempt(victim, now)
            if victim is state:
                return False
        state.update_capacity(self._cache.block_tokens)
        return True

    def _preempt_for_urgent(self, now: float) -> None:
        """Preempt from the tail while a more urgent request waits and cannot start."""
        while len(self._running) and len(self._waiting):
            tail = next(self._running.from_tail())
            if not self._is_outranked(tail):
                return
            first = self._waiting.scan(now, self._admission.cached_tokens).candidate()
            if first is not None and self._free_rows and self._admission.has_memory_for(first, now):
                return
            self._preempt(tail, now)

    def _preempt(self, state: RequestState, now: float, has_state: bool = True) -> None:
        """Return a running request to the queue. Its computed blocks stay cached until others need the memory."""
        self._stop_running(state)
        self._live_states.release(state, now, has_state=has_state)
        state.preempt()
        self._num_preemptions += 1
        self._waiting.add(state)

    # ── endings ──

    def _end(self, state: RequestState, now: float, outcome: Outcome) -> None:
        """End a request. Every request ends here, once."""
        if state.is_running:
            self._stop_running(state)
            self._live_states.finish(state, now, has_failed=outcome.error is not None)
        else:
            self._waiting.remove(state)
        state.finish()
        self._speculation.forget(state.sample_id)
        self._shares.charge(state.request.key, state.take_output_cost(self._config.output_cost))
        self._requests.remove(state)
        self._shares.remove_request(state.request.key)
        accounting = state.accounting
        if accounting.admission_time is not None:
            self._step_times.record_service(now - accounting.admission_time)
        self._outcomes.append(outcome._replace(waited=accounting.queue_seconds(now)))

    def _stop_running(self, state: RequestState) -> None:
        self._running.remove(state)
        self._free_rows.append(state.row)
        self._leaves.append(state.row)
        self._groups.remove_row(state.row)

    def _expire(self, now: float) -> None:
        self._cache.sessions.expire(now)
        for state in self._requests.take_overdue(now):
            self._end(state, now, state.outcome(error=DeadlineExceeded(state.num_output)))

    # ── figures and checks ──

    @property
    def is_idle(self) -> bool:
        """Is there no request?"""
        return not len(self._requests)

    def stats(self) -> SchedulerStats:
        """Return figures for metrics."""
        promised_wait = self._admission.promised_wait(self._waiting, self._step_times)
        counts = (len(self._running), len(self._waiting), len(self._in_flight), self._num_preemptions)
        return SchedulerStats(*counts, promised_wait, self._speculation.stats())

    def load(self) -> SchedulerLoad:
        """Return figures for gateways."""
        return measure_load(self._waiting, self._running, self._config.max_rows, self._step_times)

    def check(self) -> None:
        """Assert all invariants, the cache's too. Expensive: for tests, and for an idle engine."""
        rows = [*self._free_rows, *(state.row for state in self._running)]
        assert sorted(rows) == list(range(self._config.max_rows))
        self._requests.check(self._running, self._waiting)
        self._shares.check(Counter(state.request.key for state in self._requests))
        self._cache.check()
