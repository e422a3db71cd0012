"""The step loop: messages in, plan, launch, collect, commit, messages out.

Law: whatever is submitted is answered. A request that cannot be served is refused by name; a step that fails ends its
own requests; a failure of the loop itself is said aloud (Dead) before the loop ends.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, assert_never

import numpy as np

from quire.cache.kv_cache import KVCache
from quire.engine.grammars import Grammars
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
from quire.types.errors import DuplicateRequest, InvalidRequest, QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest
from quire.types.step import Outcome, StepPlan, StepResult

Send = Callable[[list[Outward]], None]
Receive = Callable[[float | None], Sequence[Inward]]  # wait up to so many seconds (None: for ever; 0: not at all)

COMPILING_SECONDS = 0.002  # a grammar is on its way and there is nothing else to do: look again very soon
STUCK_SECONDS = 0.01  # nothing can be planned though requests wait: look again soon, a deadline or a TTL may change it
new_tuple = tuple.__new__  # a named tuple without the cost of its own constructor: there is one for each stream


class RunsPlans(Protocol):
    """What the loop needs of a runner."""

    def launch(self, plan: StepPlan, masks: Masks | None = None) -> Flight: ...
    def collect(self, flight: Flight) -> StepResult: ...
    def release_blocks(self, blocks: Sequence[int]) -> None: ...
    def use_idle_time(self) -> bool: ...
    @property
    def padded_tokens(self) -> int: ...


@dataclass(slots=True)
class Tally:
    """Counts since the start. Only the core changes them."""

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
    """Scheduler, cache, runner and grammars of one model, and the loop that turns them. Used by one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        cache: KVCache,
        runner: RunsPlans,
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
        self._depth = depth  # steps in flight: 1 where a launch computes, 2 where it only starts
        self._flights: deque[tuple[StepPlan, Flight]] = deque()
        self._tally = Tally()
        self._plan_seconds, self._run_seconds, self._commit_seconds = (Histogram(STEP_SECONDS) for _ in range(3))
        self._out: list[Outward] = []
        self._is_open = True
        self.checks = False  # prove all invariants whenever there is nothing to do

    # ── messages ──

    def handle(self, message: Inward) -> None:
        """Take in one message; what there is to say about it comes with the next `take`."""
        now = time.monotonic()
        match message:
            case Submit(request):
                self._submit(request, now)
            case Cancel(request_id, reason, sample):
                found = self._cancel(request_id, reason, sample, now)
                self._tell_all()
                self._out.append(Cancelled(request_id, found))
            case Snapshot():
                self._out.append(self.counters())
            case Explain() | PinPrefix() | UnpinPrefix() | Flush():
                self._out.append(self._ask_cache(message, now))
            case Resize(num_blocks):
                self._out.append(self._resize(num_blocks, now))
            case Probe():
                self._out.append(Alive())
            case Shutdown():
                self._is_open = False
            case Configure() | Hello():
                pass  # whoever made this core has done what they ask for
            case _:
                assert_never(message)

    def take(self) -> list[Outward]:
        """What is to be said since the last call."""
        out, self._out = self._out, []
        return out

    def _submit(self, request: GenerateRequest, now: float) -> None:
        """A constrained request is queued when its grammar is compiled: with the next step, if it was before."""
        prompt = array("I", request.prompt)
        try:
            self._check(request, prompt)
            if request.constrained:
                self._grammars.compile(request)
        except QuireError as error:
            self._refuse(request, error)
        else:
            if not request.constrained:
                self._admit(request, None, now, prompt)

    def _take_compiled(self, now: float) -> None:
        for waited, came in self._grammars.compiled(now):
            if isinstance(came, QuireError):
                self._refuse(waited.request, came)
                continue
            self._admit(waited.request, came, now)
            for reason, sample in waited.cancels:
                self._scheduler.cancel(waited.request.id, now, reason, sample)

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
        """While its grammar is being compiled a request is not queued: then it is, and leaves the queue at once."""
        if request_id in self._grammars:
            request = self._grammars.cancel(request_id, reason, sample)
            if request is None:
                return True
            self._admit(request, None, now)
        return self._scheduler.cancel(request_id, now, reason, sample)

    def _check(self, request: GenerateRequest, prompt: array[int]) -> None:
        """Refuse token ids that the model does not have: they would be read from beyond its tables."""
        if request.id in self._grammars:
            raise DuplicateRequest(request.id)
        if np.frombuffer(prompt, np.uint32).max() >= self._vocab_size:  # in a twentieth of the time that `max` takes
            raise self._unknown_token("prompt", prompt)
        sampling = request.sampling
        for field, ids in (
            ("resumed", [token for output in request.resumed for token in output or ()]),
            ("logit_bias", sampling.logit_bias),
            ("allowed_token_ids", sampling.allowed_token_ids or ()),
            ("bad_words", [token for word in sampling.bad_words for token in word]),
            ("stop_token_ids", sampling.stop_token_ids),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
                raise self._unknown_token(field, ids)

    def _unknown_token(self, field: str, ids: Iterable[int]) -> InvalidRequest:
        wrong = next(token for token in ids if not 0 <= token < self._vocab_size)
        public = f"{field} has the token {wrong}, and the model has the tokens 0 to {self._vocab_size - 1}."
        return InvalidRequest(public, field=field)

    def _ask_cache(self, question: Explain | PinPrefix | UnpinPrefix | Flush, now: float) -> Explained | Changed:
        match question:
            case Explain(tokens, key):
                why = self._cache.explain(array("I", tokens), key)
                ago = None if why.evicted_at is None else now - why.evicted_at
                return Explained(why.num_tokens, why.num_hit, why.cause, why.given, why.cached, ago)
            case PinPrefix(tokens, key, pin):
                return Changed(self._cache.pin(array("I", tokens), key, pin, now))
            case UnpinPrefix(tokens, key):
                return Changed(self._cache.unpin(array("I", tokens), key, now))
            case Flush():
                before = self._cache.stats().num_cached
                self._cache.clear(now)
                return Changed(before)

    def _resize(self, num_blocks: int, now: float) -> Resized:
        """Never below one whole context: what was accepted, or may be, can always end."""
        self._cache.resize(max(num_blocks, self._scheduler.fewest_blocks), now)
        self._runner.release_blocks(self._cache.unused())
        return Resized(self._cache.num_blocks, self._cache.stats().num_held)

    # ── steps ──

    def step(self) -> bool:
        """One turn: plan and launch a step, take in the oldest one. False: there was nothing to do."""
        now, began = time.monotonic(), time.perf_counter()
        if self._grammars.num_compiling:
            self._take_compiled(now)
        if self._cache.settle(now):  # more was held, when it was told to shrink, than it may keep
            self._runner.release_blocks(self._cache.unused())
        plan = self._scheduler.plan(now)
        if plan.parts or plan.joins:
            self._plan_seconds.add(time.perf_counter() - began)
            self._flights.append((plan, self._runner.launch(plan, self._grammars.masks(plan))))
        did = bool(self._flights)
        if self._flights and (len(self._flights) >= self._depth or not plan.parts):
            self._collect()
        self._tell_all()
        return did

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

    def _tell_all(self) -> None:
        """What became of requests; and as long as grammars force more, what became of that."""
        while outcomes := self._scheduler.drain():
            self._tell(outcomes)
            self._grammars.follow(outcomes, time.monotonic())

    def _tell(self, outcomes: list[Outcome]) -> None:
        tally, say = self._tally, self._out.append
        for request_id, sample, tokens, logprobs, finish, error, hit, forced, prompt_logprobs, waited in outcomes:
            tally.output_tokens += len(tokens)
            tally.forced_tokens += forced
            if error is None and finish is None:
                say(new_tuple(Tokens, (request_id, sample, tokens, logprobs, hit, prompt_logprobs, forced)))
            elif error is not None:
                tally.num_failed += 1
                say(Failed(request_id, sample, error))
            elif finish is not None:
                tally.num_finished += 1
                tally.num_cancelled += finish is FinishReason.CANCELLED
                say(Finished(request_id, sample, finish, tokens, logprobs, hit, forced, waited))

    # ── the loop ──

    def run(self, receive: Receive, send: Send) -> None:
        """Serve until Shutdown. Blocks on `receive` while there is nothing to do."""
        patience: float | None = None
        try:
            while self._is_open:
                for message in receive(patience):
                    self.handle(message)
                did = self.step()
                if self._out:
                    send(self.take())
                patience = self._patience(did)
            self._close()
        except BaseException as error:
            self._out.append(Dead(EngineDied(f"The engine stopped: {type(error).__name__}: {error}")))
            raise
        finally:
            self._grammars.close()
            if self._out:
                send(self.take())

    def _patience(self, did: bool) -> float | None:
        """How long to wait for messages before the next step."""
        if did:
            return 0.0
        if self._grammars.num_compiling:
            return COMPILING_SECONDS
        if self._scheduler.is_idle:
            if self._is_open and self._runner.use_idle_time():
                return 0.0
            if self.checks:
                self.prove()
            return None
        return STUCK_SECONDS

    def _close(self) -> None:
        """End what still runs: each gets its Finished, as if it had been cancelled."""
        while self._flights:
            self._collect()
        self._tell_all()
        now = time.monotonic()
        for request in self._grammars.close():
            self._admit(request, None, now)
        self._scheduler.cancel_all(now)
        self._tell_all()
        if self.checks:
            self.prove()

    # ── answers ──

    def prove(self) -> None:
        """All invariants of scheduler and cache. Expensive: for tests, and for an idle engine under suspicion."""
        self._scheduler.check()

    def counters(self) -> Counters:
        """Numbers for metrics."""
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
            num_sessions=blocks.num_sessions,
            queried_tokens=blocks.queried_tokens,
            hit_tokens=blocks.hit_tokens,
            promised_wait=work.promised_wait,
            plan=self._plan_seconds.spread(),
            run=self._run_seconds.spread(),
            commit=self._commit_seconds.spread(),
        )
