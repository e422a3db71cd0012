"""What lives in an engine, and how it comes to life again in the next one when that engine dies.

One of the requests may have killed it, and nobody knows which. So all that were in it are suspects, and are tried: the
first alone, then more of them at a time. A suspect is cleared when it has said something new, or has ended. If an
engine dies while a suspect is alone in it, that one is refused: at once if it had said nothing new, else the second
time, because engines also die of other things. Who was on trial in an engine that died is tried first in the next, one
by one, and for longer. So a request that kills is found, also if it kills late, and the others only ever wait. Whoever
arrives meanwhile is held until the trials are over.

Pure: the clock and the sending are arguments. Used under its owner's lock.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from quire.engine.messages import EngineDied, Failed, Finished, News, PoisonRequest, Tokens
from quire.types.errors import DeadlineExceeded, DuplicateRequest, Overloaded, QuireError
from quire.types.request import FinishReason, GenerateRequest

Sink = Callable[[News], None]  # called where the link is read, a thread or an event loop: it must not block

MAX_ON_TRIAL = 8
TRIAL_BASE = 16  # a sample says one new token in its request's first trial, 16 in the second, …
MAX_TRIAL_TOKENS = 256  # and that many at most; one that has said as many since the last death has a clean record
PAUSES = (0.0, 0.5, 1.0, 2.0, 4.0)  # seconds before a start, by the number of failures in a row
LONG_PAUSE = 30.0  # when they are used up, and everyone has been told
RETRY_SECONDS = 2.0
new_tuple = tuple.__new__  # a named tuple without the cost of its own constructor


class Told(NamedTuple):
    """News, and whom to tell."""

    sink: Sink
    news: News


@dataclass(slots=True, eq=False)
class Live:
    """A request that is not over, and all that was said about it."""

    request: GenerateRequest
    sink: Sink
    arrival: int
    outputs: list[array[int] | None] = field(init=False)  # of each sample; None: it is over
    num_open: int = field(init=False)
    num_said: int = 0  # tokens, of all samples
    num_scores: int = 0  # log probabilities of its prompt that were told
    num_repeated: int = 0  # of those that the engine tells next, how many were told before
    is_accepted: bool = False
    in_engine: bool = False
    is_on_trial: bool = False
    was_alone: bool = False  # in the last engine that died of it, or with it
    num_deaths: int = 0  # of engines that it was in
    num_said_before: int = 0  # when it was sent

    def __post_init__(self) -> None:
        self.num_open = self.request.sampling.n
        self.outputs = [array("I") for _ in range(self.num_open)]

    @property
    def is_cleared(self) -> bool:
        """Has it said enough to be no suspect any more, or ended?"""
        num_needed = min(int(TRIAL_BASE ** (self.num_deaths - 1)), MAX_TRIAL_TOKENS)
        return self.num_said - self.num_said_before >= num_needed * self.num_open

    @property
    def is_guilty(self) -> bool:
        """It was alone in an engine that died: is that its fault?"""
        return self.is_on_trial and (self.was_alone or self.num_said == self.num_said_before)

    def take(self, news: News) -> News | None:
        """Remember what these say. None: it was said before."""
        if isinstance(news, Tokens | Finished):
            return self._grow(news)
        if isinstance(news, Failed):
            self._end(range(len(self.outputs)) if news.sample is None else (news.sample,))
            return news
        is_new, self.is_accepted = not self.is_accepted, True
        return news if is_new else None

    def sent(self) -> GenerateRequest:
        """It goes to an engine: as it is by now."""
        self.in_engine = True
        self.num_said_before, self.num_repeated = self.num_said, self.num_scores
        if not self.is_accepted:
            return self.request
        return replace(self.request, resumed=tuple(None if o is None else tuple(o) for o in self.outputs))

    def lost(self, is_alone: bool) -> None:
        """The engine that it was in has died."""
        self.was_alone = is_alone
        self.in_engine = self.is_on_trial = False
        if self.num_said - self.num_said_before >= MAX_TRIAL_TOKENS:
            self.num_deaths = 0
        self.num_deaths += 1

    def _grow(self, news: Tokens | Finished) -> News | None:
        output, tokens = self.outputs[news.sample], news.tokens
        if output is None:
            return None  # it was ended here, and the engine had not heard of it
        self.num_said += len(tokens)
        if len(tokens) == 1:
            output.append(tokens[0])
        else:
            output.extend(tokens)
        if isinstance(news, Finished):
            self._end((news.sample,))
        elif news.prompt_logprobs:
            return self._score(news)
        return news

    def _score(self, news: Tokens) -> News:
        """Of a prompt that is scored again, what is new."""
        num_known = min(self.num_repeated, len(news.prompt_logprobs))
        self.num_repeated -= num_known
        self.num_scores += len(news.prompt_logprobs) - num_known
        return news._replace(prompt_logprobs=news.prompt_logprobs[num_known:])

    def _end(self, samples: Iterable[int]) -> None:
        for sample in samples:
            self.num_open -= self.outputs[sample] is not None
            self.outputs[sample] = None


class Recovery:
    """Owns what lives, from `enter` to its last news. `send` hands a request to the engine, and never blocks."""

    def __init__(self, send: Callable[[GenerateRequest], None], max_held: int) -> None:
        self._send = send
        self._max_held = max_held
        self._live: dict[str, Live] = {}
        self._held: deque[Live] = deque()  # suspects first, then those who came later
        self._trials: set[Live] = set()
        self._num_at_once = 1
        self._num_arrived = 0
        self._num_failures = 0  # deaths and vain starts since someone has got a token
        self.is_up = False  # there is an engine
        self.num_deaths = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    @property
    def is_under_way(self) -> bool:
        """Is someone held, or about to be?"""
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
        """A new one: to the engine, or held. Raises, and keeps nothing, if that cannot be."""
        if request.id in self._live:
            raise DuplicateRequest(request.id)
        self._num_arrived += 1
        live = Live(request, sink, self._num_arrived)
        if self.is_under_way:
            self._hold(live)
        else:
            self._send(live.sent())  # first: it may hold what cannot be said
        self._live[request.id] = live

    def hear(self, news: Iterable[News]) -> list[Told]:
        """News out of the engine. What is to be told of them; and whoever waited for them is sent."""
        told: list[Told] = []
        for each in news:
            live = self._live.get(each.request_id)
            if live is None:
                continue
            if type(each) is Tokens and len(each.tokens) == 1 and not (live.is_on_trial or each.prompt_logprobs):
                # One more token of a request that nobody suspects: a thousand times a step, hence by itself.
                output = live.outputs[each.sample]
                if output is not None:
                    output.append(each.tokens[0])
                    live.num_said += 1
                    self._num_failures = 0
                    told.append(new_tuple(Told, (live.sink, each)))
                continue
            new = live.take(each)
            if self._num_failures and live.num_said > live.num_said_before:
                self._num_failures = 0
            if not live.num_open:
                del self._live[each.request_id]
            if live.is_on_trial and live.is_cleared:
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

    def overdue(self, now: float) -> list[Told]:
        """End whoever is held beyond its deadline."""
        late = [live for live in self._held if live.request.deadline is not None and live.request.deadline <= now]
        for live in late:
            self._drop(live)
        return [_failed(live, DeadlineExceeded(live.num_said)) for live in late]

    # ── engines ──

    def died(self) -> list[Told]:
        """The engine is gone. Who is to blame is refused; the others are tried in the next."""
        self.is_up = False
        self.num_deaths += 1
        lost = [live for live in self._live.values() if live.in_engine]
        convicted = [live for live in lost if len(lost) == 1 and live.is_guilty]
        self._num_failures += not convicted
        suspects = sorted((live for live in lost if live not in convicted), key=_suspicion, reverse=True)
        self._held.extendleft(suspects)  # from the last to the first
        for live in lost:
            live.lost(is_alone=len(lost) == 1)
        for live in convicted:
            del self._live[live.request.id]
        self._trials.clear()
        self._num_at_once = 1
        return [_failed(live, PoisonRequest()) for live in convicted]

    def start_failed(self) -> None:
        """An engine could not be started."""
        self._num_failures += 1

    def restored(self) -> None:
        """There is an engine again."""
        self.is_up = True
        self._send_due()

    def give_up(self, error: QuireError) -> list[Told]:
        """End everyone: there is no engine."""
        self.is_up = False
        live, self._live = self._live, {}
        self._held.clear()
        self._trials.clear()
        return [_failed(each, error) for each in live.values()]

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
        self._held.remove(live)
        self._send_due()

    def _clear(self, live: Live) -> None:
        live.is_on_trial = False
        self._trials.discard(live)
        self._num_at_once = min(self._num_at_once + 1, MAX_ON_TRIAL)
        self._send_due()

    def _send_due(self) -> None:
        """Suspects as far as they may be tried together; when all are through, everybody else."""
        while self.is_up and self._held and self._may_go(self._held[0]):
            live = self._held.popleft()
            if live.num_deaths:
                live.is_on_trial = True
                self._trials.add(live)
            self._send(live.sent())

    def _may_go(self, live: Live) -> bool:
        if not self._trials:
            return True
        is_second = live.num_deaths > 1 or any(each.num_deaths > 1 for each in self._trials)
        return bool(live.num_deaths) and not is_second and len(self._trials) < self._num_at_once


def _suspicion(live: Live) -> tuple[bool, bool, int]:
    """Who is tried first: who was on trial already; then who had said nothing, the newest first; then the oldest."""
    has_spoken = live.num_said > 0
    return (not live.is_on_trial, has_spoken, live.arrival if has_spoken else -live.arrival)


def _failed(live: Live, error: QuireError) -> Told:
    return Told(live.sink, Failed(live.request.id, None, error))
