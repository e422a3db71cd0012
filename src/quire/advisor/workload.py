"""A trace as simulations use it: the arrival time, prompt, answer length and cache key of each call."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from quire.advisor.prompt_marks import Exactness, MarkedPrompt, PromptMarker
from quire.report.trace import Trace, TracedRequest
from quire.types.request import CacheKey

ASSUMED_OUTPUT = 256  # tokens of an answer whose length and limit are unknown
MAX_ASSUMED_OUTPUT = 512  # answers seldom reach max_tokens: a higher limit counts as this
FIRST_ERROR_STATUS = 400


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One prompt of the trace and its answer."""

    time: float  # seconds since the first call
    marks: array[int]  # of the prompt
    output: array[int]  # marks of the answer if a later prompt repeats it; else unique numbers
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
        """When the server started it, in seconds since the first call."""
        return self.time + self.waited

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.marks)

    @property
    def num_output(self) -> int:
        """Tokens of the answer."""
        return len(self.output)


@dataclass(frozen=True)
class TraceWorkload:
    """All calls that were not refused, in order of arrival."""

    calls: tuple[TraceCall, ...]
    name: str
    has_times: bool
    num_refused: int
    exactness: Counter[str]  # number of prompts by how exactly their tokens are known
    num_counted: int  # calls whose output length is in the trace; that of the others is assumed

    @property
    def has_prompts(self) -> bool:
        """Does the trace have the tokens or the text of most prompts?"""
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

    def with_calls(self, calls: Sequence[TraceCall]) -> TraceWorkload:
        """Return a workload of these calls, with times relative to the first of them."""
        start = calls[0].time if calls else 0.0
        return replace(self, calls=tuple(replace(call, time=call.time - start) for call in calls))


def workload_of(trace: Trace, marker: PromptMarker) -> TraceWorkload:
    """Convert a trace into calls."""
    answered = [request for request in trace.requests if request.status < FIRST_ERROR_STATUS]
    pairs = [(request, prompt) for request in answered for prompt in marker.prompts(request)]
    prompts = [_marks(request, prompt, index) for index, (request, prompt) in enumerate(pairs)]
    counts = [_num_output(request) for request, _ in pairs]
    outputs = list(_outputs(prompts, [_cache_key(request) for request, _ in pairs], counts))
    calls = [
        TraceCall(
            time=request.time or 0.0,
            marks=marks,
            output=output,
            key=_cache_key(request),
            model=request.model,
            form=request.form,
            session=request.session,
            seconds=request.seconds,
            first_token=request.first_token,
            waited=request.queue_seconds,
            num_cached=request.num_cached,
            excerpt=prompt.excerpt,
        )
        for (request, prompt), marks, output in zip(pairs, prompts, outputs, strict=True)
    ]
    return TraceWorkload(
        tuple(calls),
        trace.name,
        trace.has_times,
        len(trace.requests) - len(answered),
        Counter(str(prompt.exactness) for _, prompt in pairs),
        sum(request.num_output is not None for request, _ in pairs),
    )


def _cache_key(request: TracedRequest) -> CacheKey:
    return CacheKey(model=request.model, salt=request.tenant)


def _marks(request: TracedRequest, prompt: MarkedPrompt, index: int) -> array[int]:
    """Return a prompt's marks; for an unknown prompt, marks that no other prompt has."""
    if prompt.exactness is not Exactness.UNKNOWN:
        return prompt.marks
    return _unique_marks(request.num_prompt or 1, f"prompt {index}")


def _num_output(request: TracedRequest) -> int:
    if request.num_output is not None:
        return request.num_output
    return min(request.max_tokens or ASSUMED_OUTPUT, MAX_ASSUMED_OUTPUT)


def _outputs(prompts: Sequence[array[int]], keys: Sequence[CacheKey], counts: Sequence[int]) -> Iterator[array[int]]:
    """Yield the marks of each answer. The next turn of a conversation begins with the prompt and its answer: it is
    found by the prompt's last mark."""
    ends: dict[tuple[CacheKey, int], list[int]] = {}
    for index, marks in enumerate(prompts):
        if marks:
            ends.setdefault((keys[index], marks[-1]), []).append(index)
    last_marks = {mark for _, mark in ends}
    repeated: dict[int, array[int]] = {}
    for later, marks in enumerate(prompts):
        for mark in last_marks.intersection(marks):
            for index in ends.get((keys[later], mark), ()):
                length = len(prompts[index])
                if index < later and index not in repeated and len(marks) > length and marks[length - 1] == mark:
                    repeated[index] = marks[length : length + counts[index]]
    for index, count in enumerate(counts):
        known = repeated.get(index, array("I"))
        yield known + _unique_marks(count - len(known), f"output {index}")


def _unique_marks(count: int, seed: str) -> array[int]:
    return array("I", random.Random(seed).randbytes(4 * max(0, count)))
