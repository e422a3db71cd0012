"""A workload served in simulated time: Quire's own scheduler and cache, and a device that computes nothing.

How long a step takes, the roofline says. A step's time is what its streams alone would take, and the rest is its
prompts'; of those, tokens that were computed before under the same key are recomputation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.advisor.describe import Company, Spread, company
from quire.advisor.roofline import Roofline, Work
from quire.advisor.workload import Call, Workload
from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.types.errors import QuireError
from quire.types.request import CacheKey, GenerateRequest, SamplingParams
from quire.types.step import Outcome, PartResult, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Most:
    """As much of a workload as can be gone through in some seconds."""

    calls: int
    output: int
    prompt: int


SERVED = Most(
    1500, 40_000, 4_000_000
)  # a step of the simulation costs some 50 microseconds: at most one an output token
REPLAYED = Most(50_000, 1 << 60, 2_000_000)  # a block costs a microsecond or two, in each size of cache


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of a workload."""

    num_calls: int
    num_refused: int  # calls that do not fit at all
    seconds: float  # from the first arrival to the last end
    num_output: int
    hit_rate: float
    first_token: Spread  # seconds
    token_gap: Spread  # mean gap between the tokens of a call
    end_to_end: Spread
    company: Company
    decode_seconds: float  # of the device
    prompt_seconds: float  # of tokens that were computed for the first time
    again_seconds: float  # of tokens that had been computed before
    num_steps: int
    mean_rows: float  # of steps with streams: how many
    mean_context: float  # of those
    peak_blocks: int  # of KV that requests held at once
    num_preemptions: int

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.num_output / self.seconds if self.seconds else 0.0

    @property
    def busy_seconds(self) -> float:
        """Of the device."""
        return self.decode_seconds + self.prompt_seconds + self.again_seconds

    @property
    def utilization(self) -> float:
        """Share of the time in which the device works."""
        return min(1.0, self.busy_seconds / self.seconds) if self.seconds else 0.0


@dataclass(slots=True)
class _Story:
    call: Call
    came: float
    first: float | None = None
    last: float = 0.0
    num_sent_blocks: int = 0
    num_hit: int = 0


@dataclass(slots=True)
class _Device:
    """Takes the time that a roofline says, and counts for what."""

    roofline: Roofline
    block_tokens: int
    stories: dict[str, _Story]
    decode_seconds: float = 0.0
    prompt_seconds: float = 0.0
    again_seconds: float = 0.0
    num_steps: int = 0
    num_stream_steps: int = 0
    num_rows: int = 0
    num_context: int = 0
    seen: dict[CacheKey, set[int]] = field(default_factory=dict)

    def run(self, plan: StepPlan) -> StepResult:
        """One step."""
        results: list[PartResult] = []
        num_rows = stream_context = num_prompt = num_again = read = attended = 0
        for part in plan.parts:
            story = self.stories[part.request_id]
            if part.tokens is None:
                num_rows += 1
                stream_context += part.start + 1
            else:
                count = len(part.tokens)
                num_prompt += count
                num_again += self._seen_before(story.call.key, part.tokens)
                read += part.start + count
                attended += count * part.start + count * (count + 1) // 2
            results.append(self._result(story) if part.num_logits else PartResult())
        shared = sum((len(group.rows) - 1) * group.num_blocks * self.block_tokens for group in plan.groups)
        streams = self.roofline.seconds(Work(num_rows, max(0, stream_context - shared), stream_context))
        work = Work(num_rows + num_prompt, max(0, stream_context - shared) + read, stream_context + attended)
        seconds = self.roofline.seconds(work)
        again = (seconds - streams) * num_again / num_prompt if num_prompt else 0.0
        self.decode_seconds += streams
        self.again_seconds += again
        self.prompt_seconds += seconds - streams - again
        self.num_steps += 1
        self.num_stream_steps += bool(num_rows)
        self.num_rows += num_rows
        self.num_context += stream_context
        return StepResult(plan.number, tuple(results), seconds)

    def _seen_before(self, key: CacheKey, marks: Sequence[int]) -> int:
        seen = self.seen.setdefault(key, set())
        count = sum(mark in seen for mark in marks)
        seen.update(marks)
        return count

    def _result(self, story: _Story) -> PartResult:
        story.num_sent_blocks += 1
        place = min(story.num_sent_blocks, story.call.num_output) - 1
        return PartResult((story.call.output[place] if place >= 0 else 0,))


class Simulation:
    """One server. Its clock is its own."""

    def __init__(self, roofline: Roofline, config: SchedulerConfig, num_blocks: int, block_tokens: int = 16) -> None:
        self._cache = KVCache(num_blocks, block_tokens)
        self._scheduler = Scheduler(self._cache, config)
        self._stories: dict[str, _Story] = {}
        self._device = _Device(roofline, block_tokens, self._stories)
        self._now = 0.0
        self._num_refused = 0
        self._num_preemptions = 0
        self._peak_blocks = 0

    def run(self, workload: Workload) -> Simulated:
        """Serve everything."""
        waiting = deque(enumerate(workload.calls))
        while True:
            while waiting and waiting[0][1].time <= self._now:
                self._submit(*waiting.popleft())
            if not self._step():
                if not waiting:
                    break
                self._now = max(self._now, waiting[0][1].time)
        return self._told()

    def _submit(self, place: int, call: Call) -> None:
        name = str(place)
        sampling = SamplingParams(max_tokens=max(1, call.num_output), ignore_eos=True)
        request = GenerateRequest(
            name, tuple(call.marks), sampling, key=call.key.salt, cache=call.key, session=call.session
        )
        try:
            self._scheduler.add(request, self._now)
        except QuireError:
            self._num_refused += 1
            return
        self._stories[name] = _Story(call, call.time)

    def _step(self) -> bool:
        plan = self._scheduler.plan(self._now)
        if not (plan.parts or plan.joins):
            self._take(self._scheduler.drain())
            return False
        self._peak_blocks = max(self._peak_blocks, self._cache.stats().num_held)
        result = self._device.run(plan)
        self._now += result.seconds
        self._scheduler.commit(result, self._now)
        self._take(self._scheduler.drain())
        return True

    def _take(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            story = self._stories[outcome.request_id]
            story.num_hit = max(story.num_hit, outcome.num_hit)
            if outcome.tokens and story.first is None:
                story.first = self._now
            story.last = self._now

    def _told(self) -> Simulated:
        stories, device = list(self._stories.values()), self._device
        firsts = [(each.first or each.last) - each.came for each in stories]
        gaps = [
            (each.last - (each.first or each.last)) / (each.call.num_output - 1)
            for each in stories
            if each.call.num_output > 1
        ]
        queried = sum(each.call.num_prompt for each in stories)
        return Simulated(
            num_calls=len(stories),
            num_refused=self._num_refused,
            seconds=max((each.last for each in stories), default=0.0),
            num_output=sum(each.call.num_output for each in stories),
            hit_rate=sum(each.num_hit for each in stories) / queried if queried else 0.0,
            first_token=Spread.of(firsts),
            token_gap=Spread.of(gaps),
            end_to_end=Spread.of([each.last - each.came for each in stories]),
            company=company([(each.came, each.last) for each in stories], is_measured=False),
            decode_seconds=device.decode_seconds,
            prompt_seconds=device.prompt_seconds,
            again_seconds=device.again_seconds,
            num_steps=device.num_steps,
            mean_rows=device.num_rows / max(1, device.num_stream_steps),
            mean_context=device.num_context / max(1, device.num_rows),
            peak_blocks=self._peak_blocks,
            num_preemptions=self._scheduler.stats().num_preemptions,
        )


def busiest(workload: Workload, most: Most) -> Workload:
    """All of it if that is not too much, else neighbouring calls, where they came closest together."""
    calls = workload.calls
    start = output = prompt = 0
    best, shortest = (0, len(calls)), float("inf")
    for end, call in enumerate(calls):
        output, prompt = output + call.num_output, prompt + call.num_prompt
        while end > start and (end - start >= most.calls or output > most.output or prompt > most.prompt):
            output, prompt = output - calls[start].num_output, prompt - calls[start].num_prompt
            start += 1
            per_call = (calls[end - 1].time - calls[start - 1].time) / (end - start + 1)
            if per_call < shortest:
                best, shortest = (start - 1, end), per_call
    return workload if best == (0, len(calls)) else workload.only(calls[slice(*best)])
