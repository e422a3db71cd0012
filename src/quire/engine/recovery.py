"""Resumes live requests in the next engine after one died, and finds the request that killed it, if one did.

A request may kill the engine, or a signal from outside may, and the two look alike. So blame needs a repeated
experiment with a control:

1. Every request that was in a dead engine is a suspect. Suspects are sent to the next engine on trial: first one, then
   several at a time, until each has produced a token. New requests are held meanwhile.
2. If the engine dies again, those that were on trial are tried first. If all had been cleared by then, trials were too
   short: they become longer, and start with half of the suspects. Not so if the engine was killed by a signal from
   outside, or by the system because memory was short: long trials would only delay innocent requests.
3. A suspect that was alone on trial is blamed. If it was alone in the engine, it is set aside, and the engine must run
   without it for a while (the control). If the engine dies during the control, the blame is withdrawn.
4. After the control, requests set aside are sent again. If the engine dies again, the request is refused; if it was
   killed by such a signal, a third death is required.

Every wait is bounded: a trial by `_trial_seconds`, a control by CONTROL_MAX seconds.
Pure: the clock and the sending are arguments. Used under its owner's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from quire.engine.live import Delivery, LiveRequest, Sink, failure_of
from quire.engine.messages import (
    EngineDied,
    News,
    PoisonRequest,
)
from quire.types.errors import DeadlineExceeded, DuplicateRequest, Overloaded, QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest

MAX_ON_TRIAL = 8
SHORT_TRIAL, LONG_TRIAL = 1, 256  # new tokens of each sample that end a trial
LONG_TRIAL_MIN, LONG_TRIAL_MAX = 1.0, 4.0  # seconds after which one token ends a long trial
PATIENCE_MIN, PATIENCE_MAX = 5.0, 30.0  # seconds after which a trial ends without a token
CONTROL_MIN, CONTROL_MAX = 1.0, 15.0  # seconds that an engine must run without the blamed request
CALM_SECONDS = 30.0  # an engine that ran for so long resets the count of deaths
BLAMES_NEEDED, BLAMES_NEEDED_IF_KILLED = 2, 3
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)  # seconds before a start, by the number of consecutive failures
LONG_PAUSE = 30.0  # after that, when all requests have been failed
RETRY_SECONDS = 2.0


class Recovery:
    """Owns live requests, from `add` to their last message. `send` passes a request to the engine without blocking."""

    def __init__(self, send: Callable[[GenerateRequest], None], max_held: int, clock: Callable[[], float]) -> None:
        self._send = send
        self._max_held = max_held
        self._clock = clock
        self._live: dict[str, LiveRequest] = {}
        self._held: deque[LiveRequest] = deque()  # suspects first, then new requests in order of arrival
        self._aside: deque[LiveRequest] = deque()  # blamed; sent again after the control
        self._trials: set[LiveRequest] = set()
        self._num_at_once = 1
        self._trial_tokens = SHORT_TRIAL
        self._has_primes = False
        self._up_since = self._died_at = clock()
        self._longest_gap = 0.0  # seconds between two recent deaths
        self._num_arrived = 0
        self._num_failures = 0  # unexplained deaths and failed starts since the last token
        self._num_recent = 0  # deaths since an engine last ran for CALM_SECONDS
        self.is_up = False  # an engine is running
        self.num_deaths = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def needs_ticks(self) -> bool:
        """Are requests held, on trial or set aside? Then `tick` must be called regularly."""
        return self._is_holding or bool(self._aside)

    @property
    def _is_holding(self) -> bool:
        """Must new requests wait?"""
        return not self.is_up or bool(self._held) or bool(self._trials)

    @property
    def is_hopeless(self) -> bool:
        """Have so many starts failed that live requests are failed too?"""
        return self._num_failures > len(PAUSES)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start."""
        return LONG_PAUSE if self.is_hopeless else PAUSES[max(0, self._num_failures - 1)]

    # ── requests ──

    def add(self, request: GenerateRequest, sink: Sink) -> None:
        """Send a new request to the engine, or hold it. Raises, and keeps nothing, if it can do neither."""
        if request.id in self._live:
            raise DuplicateRequest(request.id)
        self._num_arrived += 1
        live = LiveRequest(request, sink, self._num_arrived)
        if self._is_holding:
            self._hold(live)
        else:
            self._send(live.mark_sent(self._clock()))  # first: a request that cannot be encoded raises here
        self._live[request.id] = live

    def record(self, news: Iterable[News]) -> list[Delivery]:
        """Record messages from the engine and return those to deliver. Held requests that may go now are sent."""
        deliveries: list[Delivery] = []
        for each in news:
            live = self._live.get(each.request_id)
            if live is None:
                continue
            if type(each) is Tokens and len(each.tokens) == 1 and not (live.is_on_trial or each.prompt_logprobs):
                # Hot path: one more token of a request that is not on trial, up to a thousand times a step.
                output = live.outputs[each.sample]
                if output is not None:
                    output.append(each.tokens[0])
                    live.num_reported += 1
                    self._num_failures = 0
                    deliveries.append((live.sink, each))
                continue
            new = live.record(each)
            if self._num_failures and live.num_new:
                self._num_failures = 0
            if not live.num_open:
                del self._live[each.request_id]
            if live.is_on_trial and live.num_new >= self._trial_tokens * live.num_open:
                self._clear(live)
            if new is not None:
                deliveries.append((live.sink, new))
        return deliveries

    def cancel(self, request_id: str, reason: FinishReason, sample: int | None) -> list[Delivery] | None:
        """End a request, or one of its samples, that no engine has. None: an engine has it, or it is not live."""
        live = self._live.get(request_id)
        if live is None or live.in_engine:
            return None
        ends = [s for s, output in enumerate(live.outputs) if output is not None and sample in (None, s)]
        deliveries: list[Delivery] = [(live.sink, Finished(request_id, each, reason)) for each in ends]
        for _, news in deliveries:
            live.record(news)
        if not live.num_open:
            self._drop(live)
        return deliveries

    def tick(self) -> list[Delivery]:
        """End waiting requests past their deadline and trials that take too long; send requests after their control."""
        now = self._clock()
        waiting = [*self._held, *self._aside]
        late = [live for live in waiting if live.request.deadline is not None and live.request.deadline <= now]
        for live in late:
            self._drop(live)
        for live in list(self._trials):
            if now - live.sent_at >= self._trial_seconds(live):
                self._clear(live)
        self._send_due()
        return [failure_of(live, DeadlineExceeded(live.num_reported)) for live in late]

    # ── engines ──

    def on_engine_death(self, was_killed: bool = False) -> list[Delivery]:
        """The engine died. `was_killed`: by a signal from outside. A request proven to kill engines is refused."""
        now = self._clock()
        trials, self._trials = self._trials, set()
        if not trials and now - self._up_since >= CALM_SECONDS:
            self._trial_tokens, self._num_recent = SHORT_TRIAL, 0
        self.is_up = False
        self.num_deaths += 1
        gap = now - self._died_at if self._num_recent else 0.0
        self._longest_gap = max(gap, self._longest_gap if self._num_recent else 0.0)
        self._num_recent += 1
        self._died_at = now
        was_early = self._num_recent > 1 and not any(live.is_prime_suspect or not self._has_primes for live in trials)
        if was_early and not was_killed:
            self._trial_tokens = LONG_TRIAL
        self._has_primes = bool(trials)
        for live in self._live.values():
            live.is_prime_suspect = live in trials
        lost = [live for live in self._live.values() if live.in_engine]
        if len(trials) == 1 and (blamed := next(iter(trials))) in lost:
            return self._blame(blamed, lost, was_killed)
        self._num_failures += 1
        for live in self._aside:  # the engine died without them
            live.num_blamed = 0
        self._queue_suspects(sorted(lost, key=_suspicion), len(trials) or len(lost))
        self._held.extend(self._aside)
        self._aside.clear()
        self._order_held()
        return []

    def _blame(self, blamed: LiveRequest, lost: list[LiveRequest], was_killed: bool) -> list[Delivery]:
        """The engine died while this request alone was on trial."""
        blamed.num_blamed += 1
        blamed.is_separate = True
        is_alone, is_retry = len(lost) == 1, blamed.is_retry
        lost.remove(blamed)
        self._queue_suspects(sorted(lost, key=_suspicion), 1)
        blamed.mark_lost(self._clock())
        if is_retry and blamed.num_blamed >= (BLAMES_NEEDED_IF_KILLED if was_killed else BLAMES_NEEDED):
            del self._live[blamed.request.id]
            self._has_primes = False
            return [failure_of(blamed, PoisonRequest(blamed.num_blamed))]
        if is_alone or is_retry:
            self._aside.append(blamed)
            self._has_primes = blamed.is_prime_suspect = False
        else:
            self._held.appendleft(blamed)
        return []

    def _queue_suspects(self, suspects: list[LiveRequest], num_suspected: int) -> None:
        """Put suspects first in the queue for the next engine."""
        self._held.extendleft(reversed(suspects))
        now = self._clock()
        for live in suspects:
            live.mark_lost(now)
        self._num_at_once = 1 if self._trial_tokens == SHORT_TRIAL else -(-num_suspected // 2)

    def _order_held(self) -> None:
        """Put suspects before new requests; each group keeps its order."""
        self._held = deque(sorted(self._held, key=lambda live: not live.is_suspect))

    def on_start_failure(self) -> None:
        """An engine did not start."""
        self._num_failures += 1

    def on_engine_ready(self) -> None:
        """An engine is running."""
        self.is_up = True
        self._up_since = self._clock()
        self._send_due()

    def give_up(self, error: QuireError) -> list[Delivery]:
        """Fail all live requests: there is no engine."""
        self.is_up = False
        live, self._live = self._live, {}
        self._held.clear()
        self._aside.clear()
        self._trials.clear()
        return [failure_of(each, error) for each in live.values()]

    def _hold(self, live: LiveRequest) -> None:
        if self.is_hopeless:
            raise EngineDied("The engine died, and could not be restarted.")
        num_held = sum(each.num_open for each in self._held)
        if num_held + live.num_open > self._max_held:
            public = (
                f"{num_held} requests wait for the engine, which is restarting, and at most {self._max_held} may wait."
            )
            raise Overloaded(public, RETRY_SECONDS)
        self._held.append(live)

    def _drop(self, live: LiveRequest) -> None:
        del self._live[live.request.id]
        (self._aside if live in self._aside else self._held).remove(live)
        self._send_due()

    def _clear(self, live: LiveRequest) -> None:
        live.clear()
        self._trials.discard(live)
        self._num_at_once = min(self._num_at_once + 1, max(MAX_ON_TRIAL, self._num_at_once))
        self._send_due()

    def _trial_seconds(self, live: LiveRequest) -> float:
        """Seconds after which its trial ends, whatever it has produced."""
        if live.num_new and self._trial_tokens == LONG_TRIAL:
            return min(max(LONG_TRIAL_MIN, 1.5 * live.exposure), LONG_TRIAL_MAX)
        return min(max(PATIENCE_MIN, 2 * live.exposure), PATIENCE_MAX)

    # ── which requests are sent ──

    def _send_due(self) -> None:
        """Send suspects that may be tried together; then new requests; then, one by one, requests set aside."""
        while self.is_up and self._held and self._may_go(self._held[0]):
            self._dispatch(self._held.popleft())
        if self.is_up and self._aside and not self._is_holding:
            control_seconds = min(max(CONTROL_MIN, 3 * self._longest_gap), CONTROL_MAX)
            if self._clock() - self._up_since >= control_seconds:
                live = self._aside.popleft()
                live.is_retry = True
                self._dispatch(live)

    def _dispatch(self, live: LiveRequest) -> None:
        if live.is_suspect:
            live.is_on_trial = True
            self._trials.add(live)
        self._send(live.mark_sent(self._clock()))

    def _may_go(self, live: LiveRequest) -> bool:
        if not self._trials:
            return True
        if live.is_separate or any(each.is_separate for each in self._trials):
            return False
        if any(each.is_prime_suspect for each in self._trials) and not live.is_prime_suspect:
            return False
        return live.is_suspect and len(self._trials) < self._num_at_once


def _suspicion(live: LiveRequest) -> tuple[bool, bool, int]:
    """Sort key: requests on trial first; then those without a token, newest first; then the oldest."""
    has_tokens = live.num_reported > 0
    return (not live.is_on_trial, has_tokens, live.arrival if has_tokens else -live.arrival)
