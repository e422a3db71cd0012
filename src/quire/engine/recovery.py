"""Resume live requests in the next engine when theirs has died, and find the request that killed it, if one did.

An engine may die of a request, or be killed from outside, and one death looks like the other. So blame needs an
experiment that is repeated and has a control:

1. Every request that was in a dead engine is a suspect. Suspects are sent to the next engine on trial: first one, then
   more at a time, until each has got a token. Requests that arrive meanwhile are held.
2. If the engine dies again, those on trial are tried first. If they had all been cleared by then, that was too early:
   trials get longer, and begin with half of the suspects. Not so if it was killed by a signal that comes from outside,
   or from the system when memory is short: then long trials would only make innocent streams wait.
3. A suspect that was the only one on trial is blamed. If it was alone in the engine it is set aside, and the engine has
   to run without it for a while (the control). If that dies too, the blame is void.
4. After the control, what was set aside is sent again. If the engine dies of that too, the request is refused; if it
   was killed by such a signal, once more is needed.

Every wait is bounded: a trial by `_patience`, a control by CONTROL_MAX seconds.
Pure: the clock and the sending are arguments. Used under its owner's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from quire.engine.live import Live, Sink, Told, failed
from quire.engine.messages import EngineDied, News, PoisonRequest
from quire.types.errors import DeadlineExceeded, DuplicateRequest, Overloaded, QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest

MAX_ON_TRIAL = 8
SHORT_TRIAL, LONG_TRIAL = 1, 256  # new tokens of each sample that end a trial
LONG_TRIAL_MIN, LONG_TRIAL_MAX = 1.0, 4.0  # seconds after which one token is enough
PATIENCE_MIN, PATIENCE_MAX = 5.0, 30.0  # seconds after which a trial ends without a token
CONTROL_MIN, CONTROL_MAX = 1.0, 15.0  # seconds that an engine must run without a request that it may have died of
CALM_SECONDS = 30.0  # an engine that has run for so long begins a new record
BLAMES_NEEDED, BLAMES_NEEDED_IF_KILLED = 2, 3
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)  # seconds before a start, by the number of failures in a row
LONG_PAUSE = 30.0  # when they are used up, and everyone has been told
RETRY_SECONDS = 2.0
new_tuple = tuple.__new__  # a named tuple without the cost of its own constructor


class Recovery:
    """Owns live requests, from `enter` to their last news. `send` hands a request to the engine, and never blocks."""

    def __init__(self, send: Callable[[GenerateRequest], None], max_held: int, clock: Callable[[], float]) -> None:
        self._send = send
        self._max_held = max_held
        self._clock = clock
        self._live: dict[str, Live] = {}
        self._held: deque[Live] = deque()  # suspects first, then newcomers in the order of their arrival
        self._aside: deque[Live] = deque()  # blamed; sent again after the control
        self._trials: set[Live] = set()
        self._num_at_once = 1
        self._trial_tokens = SHORT_TRIAL
        self._has_primes = False
        self._up_since = self._died_at = clock()
        self._longest_gap = 0.0  # seconds between two of the recent deaths
        self._num_arrived = 0
        self._num_failures = 0  # unexplained deaths and failed starts since the last token
        self._num_recent = 0  # deaths since an engine last ran for CALM_SECONDS
        self.is_up = False  # there is an engine
        self.num_deaths = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def is_under_way(self) -> bool:
        """Are requests held, on trial or set aside, or about to be? Then `tick` must be called now and then."""
        return self._is_holding or bool(self._aside)

    @property
    def _is_holding(self) -> bool:
        """Must newcomers wait?"""
        return not self.is_up or bool(self._held) or bool(self._trials)

    @property
    def is_hopeless(self) -> bool:
        """Has it been tried often enough to tell everyone?"""
        return self._num_failures > len(PAUSES)

    @property
    def pause(self) -> float:
        """Seconds to wait before the next start."""
        return LONG_PAUSE if self.is_hopeless else PAUSES[max(0, self._num_failures - 1)]

    # ── requests ──

    def enter(self, request: GenerateRequest, sink: Sink) -> None:
        """Send a new request to the engine, or hold it. Raises, and keeps nothing, if that cannot be."""
        if request.id in self._live:
            raise DuplicateRequest(request.id)
        self._num_arrived += 1
        live = Live(request, sink, self._num_arrived)
        if self._is_holding:
            self._hold(live)
        else:
            self._send(live.sent(self._clock()))  # first: it may hold what cannot be said
        self._live[request.id] = live

    def hear(self, news: Iterable[News]) -> list[Told]:
        """Record news from the engine; return those to pass on. Requests that waited for them are sent."""
        told: list[Told] = []
        for each in news:
            live = self._live.get(each.request_id)
            if live is None:
                continue
            if type(each) is Tokens and len(each.tokens) == 1 and not (live.is_on_trial or each.prompt_logprobs):
                # Hot path: one more token of a request that is not on trial, up to a thousand times a step.
                output = live.outputs[each.sample]
                if output is not None:
                    output.append(each.tokens[0])
                    live.num_said += 1
                    self._num_failures = 0
                    told.append(new_tuple(Told, (live.sink, each)))
                continue
            new = live.take(each)
            if self._num_failures and live.num_new:
                self._num_failures = 0
            if not live.num_open:
                del self._live[each.request_id]
            if live.is_on_trial and live.num_new >= self._trial_tokens * live.num_open:
                self._clear(live)
            if new is not None:
                told.append(Told(live.sink, new))
        return told

    def cancel(self, request_id: str, reason: FinishReason, sample: int | None) -> list[Told] | None:
        """End a request, or one of its samples, that no engine has. None: an engine has it, if there is such a one."""
        live = self._live.get(request_id)
        if live is None or live.in_engine:
            return None
        ends = [s for s, output in enumerate(live.outputs) if output is not None and sample in (None, s)]
        told = [Told(live.sink, Finished(request_id, each, reason)) for each in ends]
        for each in told:
            live.take(each.news)
        if not live.num_open:
            self._drop(live)
        return told

    def tick(self) -> list[Told]:
        """End waiting requests whose deadline has passed, trials that take too long, and controls that are over."""
        now = self._clock()
        waiting = [*self._held, *self._aside]
        late = [live for live in waiting if live.request.deadline is not None and live.request.deadline <= now]
        for live in late:
            self._drop(live)
        for live in list(self._trials):
            if now - live.sent_at >= self._patience(live):
                self._clear(live)
        self._send_due()
        return [failed(live, DeadlineExceeded(live.num_said)) for live in late]

    # ── engines ──

    def died(self, was_killed: bool = False) -> list[Told]:
        """The engine is gone. `was_killed`: by a signal that it does not send itself. A proven killer is refused."""
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
        was_early = self._num_recent > 1 and not any(live.is_prime or not self._has_primes for live in trials)
        if was_early and not was_killed:
            self._trial_tokens = LONG_TRIAL
        self._has_primes = bool(trials)
        for live in self._live.values():
            live.is_prime = live in trials
        lost = [live for live in self._live.values() if live.in_engine]
        if len(trials) == 1 and (blamed := next(iter(trials))) in lost:
            return self._blame(blamed, lost, was_killed)
        self._num_failures += 1
        for live in self._aside:  # the engine dies without them too
            live.num_blamed = 0
        self._expect(sorted(lost, key=_suspicion), len(trials) or len(lost))
        self._held.extend(self._aside)
        self._aside.clear()
        self._order_held()
        return []

    def _blame(self, blamed: Live, lost: list[Live], was_killed: bool) -> list[Told]:
        """The engine died while one request was on trial."""
        blamed.num_blamed += 1
        blamed.is_separate = True
        is_alone, is_retry = len(lost) == 1, blamed.is_retry
        lost.remove(blamed)
        self._expect(sorted(lost, key=_suspicion), 1)
        blamed.lost(self._clock())
        if is_retry and blamed.num_blamed >= (BLAMES_NEEDED_IF_KILLED if was_killed else BLAMES_NEEDED):
            del self._live[blamed.request.id]
            self._has_primes = False
            return [failed(blamed, PoisonRequest(blamed.num_blamed))]
        if is_alone or is_retry:
            self._aside.append(blamed)
            self._has_primes = blamed.is_prime = False
        else:
            self._held.appendleft(blamed)
        return []

    def _expect(self, suspects: list[Live], num_suspected: int) -> None:
        """Put them first in line for the next engine."""
        self._held.extendleft(reversed(suspects))
        now = self._clock()
        for live in suspects:
            live.lost(now)
        self._num_at_once = 1 if self._trial_tokens == SHORT_TRIAL else -(-num_suspected // 2)

    def _order_held(self) -> None:
        """Suspects before newcomers; each group keeps its order."""
        self._held = deque(sorted(self._held, key=lambda live: not live.is_suspect))

    def start_failed(self) -> None:
        """An engine could not be started."""
        self._num_failures += 1

    def restored(self) -> None:
        """There is an engine again."""
        self.is_up = True
        self._up_since = self._clock()
        self._send_due()

    def give_up(self, error: QuireError) -> list[Told]:
        """End everyone: there is no engine."""
        self.is_up = False
        live, self._live = self._live, {}
        self._held.clear()
        self._aside.clear()
        self._trials.clear()
        return [failed(each, error) for each in live.values()]

    def _hold(self, live: Live) -> None:
        if self.is_hopeless:
            raise EngineDied("The engine has died, and could not be started again.")
        num_held = sum(each.num_open for each in self._held)
        if num_held + live.num_open > self._max_held:
            public = f"{num_held} requests wait for the engine, which was restarted, and {self._max_held} may."
            raise Overloaded(public, RETRY_SECONDS)
        self._held.append(live)

    def _drop(self, live: Live) -> None:
        del self._live[live.request.id]
        (self._aside if live in self._aside else self._held).remove(live)
        self._send_due()

    def _clear(self, live: Live) -> None:
        live.clear()
        self._trials.discard(live)
        self._num_at_once = min(self._num_at_once + 1, max(MAX_ON_TRIAL, self._num_at_once))
        self._send_due()

    def _patience(self, live: Live) -> float:
        """Seconds after which its trial is over, whatever it has said."""
        if live.num_new and self._trial_tokens == LONG_TRIAL:
            return min(max(LONG_TRIAL_MIN, 1.5 * live.exposure), LONG_TRIAL_MAX)
        return min(max(PATIENCE_MIN, 2 * live.exposure), PATIENCE_MAX)

    # ── which requests are sent ──

    def _send_due(self) -> None:
        """Send suspects as far as they may be tried together; then newcomers; then, one by one, what was set aside."""
        while self.is_up and self._held and self._may_go(self._held[0]):
            self._dispatch(self._held.popleft())
        if self.is_up and self._aside and not self._is_holding:
            control_seconds = min(max(CONTROL_MIN, 3 * self._longest_gap), CONTROL_MAX)
            if self._clock() - self._up_since >= control_seconds:
                live = self._aside.popleft()
                live.is_retry = True
                self._dispatch(live)

    def _dispatch(self, live: Live) -> None:
        if live.is_suspect:
            live.is_on_trial = True
            self._trials.add(live)
        self._send(live.sent(self._clock()))

    def _may_go(self, live: Live) -> bool:
        if not self._trials:
            return True
        if live.is_separate or any(each.is_separate for each in self._trials):
            return False
        if any(each.is_prime for each in self._trials) and not live.is_prime:
            return False
        return live.is_suspect and len(self._trials) < self._num_at_once


def _suspicion(live: Live) -> tuple[bool, bool, int]:
    """Sorts first: those on trial; then those without a token, the newest first; then the oldest."""
    has_spoken = live.num_said > 0
    return (not live.is_on_trial, has_spoken, live.arrival if has_spoken else -live.arrival)
