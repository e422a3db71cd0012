"""A trace as simulations see it: when which prompt came, how long its answer was, and who may share its prefix."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from quire.advisor.prompts import Exactness, Marked, Marker
from quire.report.trace import Trace, TracedRequest
from quire.types.request import CacheKey

ASSUMED_OUTPUT = 256  # tokens of an answer of which nothing is said
MOST_ASSUMED = 512  # a limit on answers is seldom reached: of one above this, this is taken
OK = 400  # from this status on a request was refused


@dataclass(frozen=True, slots=True)
class Call:
    """One prompt and its answer."""

    time: float  # seconds since the first
    marks: array[int]  # of the prompt
    output: array[int]  # of the answer, where a later prompt repeats it; else numbers that nothing else has
    key: CacheKey
    model: str
    form: str | None = None
    session: str | None = None
    seconds: float | None = None
    first_token: float | None = None
    waited: float = 0.0
    num_cached: int | None = None
    excerpt: Callable[[int], str] | None = None

    @property
    def started(self) -> float:
        """When its server let it begin."""
        return self.time + self.waited

    @property
    def num_prompt(self) -> int:
        """Tokens."""
        return len(self.marks)

    @property
    def num_output(self) -> int:
        """Tokens."""
        return len(self.output)


@dataclass(frozen=True)
class Workload:
    """All calls that were not refused, in the order of their arrival."""

    calls: tuple[Call, ...]
    name: str
    has_times: bool
    num_refused: int
    exactness: Counter[str]  # of prompts
    num_counted: int  # calls whose output was counted; that of the others is assumed

    @property
    def knows_prompts(self) -> bool:
        """Is it known of most prompts what they were?"""
        return self.exactness[Exactness.UNKNOWN] * 2 < self.exactness.total()

    @cached_property
    def num_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(call.num_prompt for call in self.calls)

    @cached_property
    def num_output(self) -> int:
        """Tokens of all answers."""
        return sum(call.num_output for call in self.calls)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.calls[-1].time if self.calls else 0.0

    def only(self, calls: Sequence[Call]) -> Workload:
        """Some of them, the first one's time being 0."""
        start = calls[0].time if calls else 0.0
        return replace(self, calls=tuple(replace(call, time=call.time - start) for call in calls))


def workload_of(trace: Trace, marker: Marker) -> Workload:
    """A trace's calls."""
    answered = [request for request in trace.requests if request.status < OK]
    found = [(request, marked) for request in answered for marked in marker.prompts(request)]
    prompts = [_known(request, marked, place) for place, (request, marked) in enumerate(found)]
    counts = [_num_output(request) for request, _ in found]
    outputs = list(_outputs(prompts, [_key(request) for request, _ in found], counts))
    calls = [
        Call(
            time=request.time or 0.0,
            marks=marks,
            output=output,
            key=_key(request),
            model=request.model,
            form=request.form,
            session=request.session,
            seconds=request.seconds,
            first_token=request.first_token,
            waited=request.queue_seconds,
            num_cached=request.num_cached,
            excerpt=marked.excerpt,
        )
        for (request, marked), marks, output in zip(found, prompts, outputs, strict=True)
    ]
    return Workload(
        tuple(calls),
        trace.name,
        trace.has_times,
        len(trace.requests) - len(answered),
        Counter(str(marked.exactness) for _, marked in found),
        sum(request.num_output is not None for request, _ in found),
    )


def _key(request: TracedRequest) -> CacheKey:
    return CacheKey(model=request.model, salt=request.tenant)


def _known(request: TracedRequest, marked: Marked, place: int) -> array[int]:
    """A prompt that nobody knows is one that nobody else has."""
    if marked.exactness is not Exactness.UNKNOWN:
        return marked.marks
    return _fresh(request.num_prompt or 1, f"prompt {place}")


def _num_output(request: TracedRequest) -> int:
    if request.num_output is not None:
        return request.num_output
    return min(request.max_tokens or ASSUMED_OUTPUT, MOST_ASSUMED)


def _outputs(prompts: Sequence[array[int]], keys: Sequence[CacheKey], counts: Sequence[int]) -> Iterator[array[int]]:
    """What was answered stands in the next turn, which begins with the same prompt: found by its last mark."""
    ends: dict[tuple[CacheKey, int], list[int]] = {}
    for place, marks in enumerate(prompts):
        if marks:
            ends.setdefault((keys[place], marks[-1]), []).append(place)
    wanted = {mark for _, mark in ends}
    found: dict[int, array[int]] = {}
    for later, marks in enumerate(prompts):
        for mark in wanted.intersection(marks):
            for place in ends.get((keys[later], mark), ()):
                length = len(prompts[place])
                if place < later and place not in found and len(marks) > length and marks[length - 1] == mark:
                    found[place] = marks[length : length + counts[place]]
    for place, count in enumerate(counts):
        known = found.get(place, array("I"))
        yield known + _fresh(count - len(known), f"output {place}")


def _fresh(count: int, seed: str) -> array[int]:
    return array("I", random.Random(seed).randbytes(4 * max(0, count)))
