"""The step loop: messages in, plan, launch, collect, commit, messages out.

Law: every submitted request is answered. A request that cannot be served is refused with the reason; a failed step ends
its own requests; if the loop itself fails, it sends Dead before it ends.
"""

from __future__ import annotations

import secrets
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Protocol, assert_never

import numpy as np

from quire.cache.kv_cache import KVCache
from quire.engine.event_pages import EventPages
from quire.engine.grammars import Grammars
from quire.engine.load_report import load_report
from quire.engine.messages import (
    Accepted,
    Alive,
    Cancel,
    Cancelled,
    Changed,
    Configure,
    Counters,
    Dead,
    EngineDied,
    Explain,
    Explained,
    Failed,
    Flush,
    Hello,
    Inward,
    Outward,
    PinPrefix,
    Probe,
    ReadEvents,
    ReadLoad,
    Resize,
    Resized,
    Shutdown,
    Snapshot,
    Submit,
    UnpinPrefix,
)
from quire.grammar.grammar import Grammar
from quire.observe.histogram import Histogram
from quire.observe.metrics import STEP_SECONDS
from quire.runner.flight import Flight, Masks
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.whole_texts import WholeTextScheduler
from quire.types.errors import DuplicateRequest, InvalidRequest, QuireError, WrongKind
from quire.types.kinds import RequestKind
from quire.types.output import Finished, split_outcomes
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, StepPlan, StepResult

Send = Callable[[list[Outward]], None]
Receive = Callable[[float | None], Sequence[Inward]]  # waits up to so many seconds (None: for ever; 0: not at all)

COMPILING_SECONDS = 0.002  # until the next check while a grammar compiles and nothing else is to do
STUCK_SECONDS = 0.01  # until the next check while requests wait but none can be planned: a deadline or TTL may pass


class PlanRunner(Protocol):
    """The part of a runner that the loop uses."""

    def launch(self, plan: StepPlan, masks: Masks | None = None) -> Flight: ...
    def collect(self, flight: Flight) -> StepResult: ...
    def release_blocks(self, blocks: Sequence[int]) -> None: ...
    def use_idle_time(self) -> bool: ...
    @property
    def padded_tokens(self) -> int: ...


@dataclass(slots=True)
class Tally:
    """Counts since the start. Changed by the core alone."""

    num_steps: int = 0
    num_accepted: int = 0
    num_refused: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    forced_tokens: int = 0
    busy_seconds: float = 0.0


class EngineCore:
    """Scheduler, cache, runner and grammars of one model, and their step loop. Used by one thread."""

    def __init__(
        self,
        scheduler: Scheduler | WholeTextScheduler,
        cache: KVCache,
        runner: PlanRunner,
        grammars: Grammars,
        vocab_size: int,
        *,
        depth: int = 1,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._depth = depth  # steps in flight: 1 where a launch computes the step, 2 where it only starts it
        self._flights: deque[tuple[StepPlan, Flight]] = deque()
        self._event_pages = EventPages(cache)
        self._tally = Tally()
        self._plan_seconds, self._run_seconds, self._commit_seconds = (Histogram(STEP_SECONDS) for _ in range(3))
        self._out: list[Outward] = []
        self._is_open = True
        self.wake: Callable[[], None] = lambda: None  # ends a wait for messages; set by the process that runs the loop
        self.kinds: Sequence[RequestKind] = (RequestKind.GENERATE,)  # of requests that are accepted
        self.seeds_requests = False  # give each request a seed, so that a model drafts with the same random numbers
        self.checks_when_idle = False  # check all invariants whenever the engine is idle

    # ── messages ──

    def handle(self, message: Inward) -> None:
        """Handle one message; its answers are returned by the next `take`."""
        now = time.monotonic()
        match message:
            case Submit(request):
                self._submit(request, now)
            case Cancel(request_id, reason, sample):
                found = self._cancel(request_id, reason, sample, now)
                self._report_all()
                self._out.append(Cancelled(request_id, found))
            case Snapshot():
                self._out.append(self.counters())
            case Explain() | PinPrefix() | UnpinPrefix() | Flush():
                self._out.append(self._ask_cache(message, now))
            case Resize(num_blocks):
                self._out.append(self._resize(num_blocks, now))
            case ReadEvents():
                self._out.append(self._event_pages.read(message))
            case ReadLoad():
                self._out.append(
                    load_report(self._event_pages.epoch, self._scheduler, self._cache, self._tally.computed_tokens)
                )
            case Probe():
                self._out.append(Alive())
            case Shutdown():
                self._is_open = False
            case Configure() | Hello():
                pass  # handled before this core was made
            case _:
                assert_never(message)

    def take(self) -> list[Outward]:
        """Return the messages to send since the last call."""
        out, self._out = self._out, []
        return out

    def _submit(self, request: GenerateRequest, now: float) -> None:
        """Check and queue a request. A constrained one is queued once its grammar is compiled."""
        if self.seeds_requests and request.sampling.seed is None and not request.sampling.is_greedy:
            request = replace(request, sampling=request.sampling.updated(seed=secrets.randbits(63)))
        prompt = array("I", request.prompt)
        try:
            self._check(request, prompt)
            if request.is_constrained:
                self._grammars.compile(request)
        except QuireError as error:
            self._refuse(request, error)
        else:
            if not request.is_constrained:
                self._admit(request, None, now, prompt)

    def _take_compiled(self, now: float) -> None:
        for pending, compiled in self._grammars.take_compiled(now):
            if isinstance(compiled, QuireError):
                self._refuse(pending.request, compiled)
                continue
            self._admit(pending.request, compiled, now)
            for reason, sample in pending.cancels:
                self._scheduler.cancel(pending.request.id, now, reason, sample)

    def _admit(
        self, request: GenerateRequest, grammar: Grammar | None, now: float, prompt: array[int] | None = None
    ) -> None:
        try:
            self._scheduler.add(request, now, prompt)
        except QuireError as error:
            self._refuse(request, error)
            return
        self._tally.num_accepted += 1
        self._out.append(Accepted(request.id))
        if grammar is not None:
            self._grammars.start(request, grammar, now)

    def _refuse(self, request: GenerateRequest, error: QuireError) -> None:
        self._tally.num_refused += 1
        self._out.append(Failed(request.id, None, error))

    def _cancel(self, request_id: str, reason: FinishReason, sample: int | None, now: float) -> bool:
        """Cancel a request or a sample. A request whose grammar is compiling is queued first, to end like any other."""
        if request_id in self._grammars:
            request = self._grammars.cancel(request_id, reason, sample)
            if request is None:
                return True
            self._admit(request, None, now)
        return self._scheduler.cancel(request_id, now, reason, sample)

    def _check(self, request: GenerateRequest, prompt: array[int]) -> None:
        """Refuse what the model cannot do, and token ids outside the vocabulary: they would be read from beyond its
        tables."""
        if request.kind not in self.kinds:
            raise WrongKind(request.kind, self.kinds)
        if request.id in self._grammars:
            raise DuplicateRequest(request.id)
        if np.frombuffer(prompt, np.uint32).max() >= self._vocab_size:  # 20 times as fast as `max`
            raise self._unknown_token("input" if request.is_pooled else "prompt", prompt)
        sampling = request.sampling
        for field, ids in (
            ("prompt", () if request.source is None else request.source.tokens),
            ("resumed", [token for output in request.resumed for token in output or ()]),
            ("prediction", request.predicted),
            ("logit_bias", sampling.logit_bias),
            ("allowed_token_ids", sampling.allowed_token_ids or ()),
            ("bad_words", [token for word in sampling.bad_words for token in word]),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
                raise self._unknown_token(field, ids)

    def _unknown_token(self, field: str, ids: Iterable[int]) -> InvalidRequest:
        wrong = next(token for token in ids if not 0 <= token < self._vocab_size)
        public = f"{field} has the token {wrong}, and the model has tokens 0 to {self._vocab_size - 1}."
        return InvalidRequest(public, field=field)

    def _ask_cache(self, question: Explain | PinPrefix | UnpinPrefix | Flush, now: float) -> Explained | Changed:
        match question:
            case Explain(tokens, key):
                why = self._cache.explain(array("I", tokens), key)
                ago = None if why.evicted_at is None else now - why.evicted_at
                ends = (why.prompt_token, why.cached_token, ago)
                return Explained(why.num_tokens, why.num_hit, why.cause, *ends, num_in_tree=why.num_in_tree)
            case PinPrefix(tokens, key, pin):
                return Changed(self._cache.pins.add(array("I", tokens), key, pin, now))
            case UnpinPrefix(tokens, key):
                return Changed(self._cache.pins.remove(array("I", tokens), key, now))
            case Flush():
                before = self._cache.stats().num_cached
                self._cache.clear(now)
                return Changed(before)

    def _resize(self, num_blocks: int, now: float) -> Resized:
        """Resize the cache, never below one whole context: any request that was or may be accepted must fit."""
        self._cache.resizing.start(max(num_blocks, self._scheduler.fewest_blocks), now)
        self._runner.release_blocks(self._cache.resizing.retired_blocks())
        return Resized(self._cache.num_blocks, self._cache.stats().num_held)

    # ── steps ──

    def step(self) -> bool:
        """Plan and launch a step, and collect the oldest one if due. False: there was nothing to do."""
        now, began = time.monotonic(), time.perf_counter()
        if self._grammars.num_compiling:
            self._take_compiled(now)
        if self._cache.resizing.advance(now):  # blocks that were held when a shrink began are free now
            self._runner.release_blocks(self._cache.resizing.retired_blocks())
        if self._flights and self._scheduler.wants_results:
            while self._flights:
                self._collect()
            if self._grammars.has_texts:  # their forced tokens belong to the next step; other reports can wait for it
                self._report_all()
        plan = self._scheduler.plan(now)
        if plan.parts or plan.joins:
            self._plan_seconds.add(time.perf_counter() - began)
            self._flights.append((plan, self._runner.launch(plan, self._grammars.masks(plan))))
        is_busy = bool(self._flights)
        if self._flights and (len(self._flights) >= self._depth or not plan.parts):
            self._collect()
        self._report_all()
        return is_busy

    def _collect(self) -> None:
        plan, flight = self._flights.popleft()
        result = self._runner.collect(flight)
        began = time.perf_counter()
        self._scheduler.commit(result, time.monotonic())
        self._commit_seconds.add(time.perf_counter() - began)
        self._run_seconds.add(result.seconds)
        self._tally.num_steps += 1
        self._tally.computed_tokens += plan.num_tokens
        self._tally.busy_seconds += result.busy_seconds

    def _report_all(self) -> None:
        """Report the outcomes of requests, until grammars force no more tokens."""
        while outcomes := self._scheduler.drain():
            self._report(self._grammars.follow(outcomes, time.monotonic()))

    def _report(self, outcomes: list[Outcome]) -> None:
        tally, split = self._tally, split_outcomes(outcomes)
        self._out += split.ongoing
        tally.output_tokens += split.num_output
        tally.forced_tokens += split.num_forced
        for request_id, sample, tokens, logprobs, finish, error, hit, forced, _, waited, drafts, vector in split.ended:
            if error is not None:
                tally.num_failed += 1
                self._out.append(Failed(request_id, sample, error))
            elif finish is not None:
                tally.num_finished += 1
                tally.num_cancelled += finish is FinishReason.CANCELLED
                facts = (tokens, logprobs, hit, forced, waited, drafts, vector)
                self._out.append(Finished(request_id, sample, finish, *facts))

    # ── the loop ──

    def run(self, receive: Receive, send: Send) -> None:
        """Serve until Shutdown. Blocks in `receive` while there is nothing to do."""
        timeout: float | None = None
        try:
            while self._is_open:
                for message in receive(timeout):
                    self.handle(message)
                is_busy = self.step()
                if self._out:
                    send(self.take())
                timeout = self._receive_timeout(is_busy)
            self._close()
        except BaseException as error:
            self._out.append(Dead(EngineDied(f"The engine stopped: {type(error).__name__}: {error}")))
            raise
        finally:
            self._grammars.close()
            if self._out:
                send(self.take())

    def _receive_timeout(self, is_busy: bool) -> float | None:
        """Seconds to wait for messages before the next step; None: until one comes."""
        if is_busy:
            return 0.0
        if self._grammars.num_compiling:
            return COMPILING_SECONDS
        if self._scheduler.is_idle:
            if self._is_open and self._runner.use_idle_time():
                return 0.0
            if self.checks_when_idle:
                self.check()
            return None
        return STUCK_SECONDS

    def _close(self) -> None:
        """Cancel what still runs: every request gets its Finished."""
        while self._flights:
            self._collect()
        self._report_all()
        now = time.monotonic()
        for request in self._grammars.close():
            self._admit(request, None, now)
        self._scheduler.cancel_all(now)
        self._report_all()
        if self.checks_when_idle:
            self.check()

    # ── answers ──

    def check(self) -> None:
        """Check all invariants of scheduler and cache. Expensive: for tests and debugging."""
        self._scheduler.check()

    def counters(self) -> Counters:
        """Return the counters for metrics."""
        work, blocks = self._scheduler.stats(), self._cache.stats()
        return Counters(
            **{field.name: getattr(self._tally, field.name) for field in fields(Tally)},
            padded_tokens=self._runner.padded_tokens,
            num_running=work.num_running,
            num_waiting=work.num_waiting,
            num_compiling=self._grammars.num_compiling,
            num_preemptions=work.num_preemptions,
            num_blocks=blocks.num_blocks,
            num_free_blocks=blocks.num_free,
            num_held_blocks=blocks.num_held,
            num_cached_blocks=blocks.num_cached,
            **asdict(blocks.columns),
            num_sessions=blocks.num_sessions,
            queried_tokens=blocks.queried_tokens,
            hit_tokens=blocks.hit_tokens,
            promised_wait=work.promised_wait,
            **asdict(work.drafts),
            plan=self._plan_seconds.value(),
            run=self._run_seconds.value(),
            commit=self._commit_seconds.value(),
        )
