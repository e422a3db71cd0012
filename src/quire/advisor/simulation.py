"""Serves a workload in simulated time: Quire's own scheduler and cache, and a device that only takes time.

The roofline gives the seconds of a step. They are split into decode (what the step's streams alone would take) and
prompts (the rest); the share of prompt tokens that were computed before under the same key is recomputation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.advisor.roofline import Roofline, StepWork, prompt_work
from quire.advisor.workload import TraceCall, TraceWorkload
from quire.advisor.workload_summary import Concurrency, Distribution, concurrency_of
from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.types.errors import QuireError
from quire.types.request import CacheKey, GenerateRequest, SamplingParams
from quire.types.step import Outcome, PartResult, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class SimulationLimit:
    """The part of a workload that can be processed in a few seconds."""

    calls: int
    output: int
    prompt: int


# A simulated step costs about 50 µs, and there is at most one per output token.
SERVED = SimulationLimit(1500, 40_000, 4_000_000)
# A replayed block costs 1 to 2 µs for each cache size.
REPLAYED = SimulationLimit(50_000, 1 << 60, 2_000_000)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of serving a workload in simulated time."""

    num_calls: int
    num_refused: int  # calls that exceed the limits
    seconds: float  # from the first arrival to the last token
    num_output: int
    hit_rate: float
    first_token: Distribution  # seconds to the first token
    token_gap: Distribution  # mean seconds between the tokens of a call
    end_to_end: Distribution
    concurrency: Concurrency
    decode_seconds: float  # device time
    prompt_seconds: float  # device time of tokens computed for the first time
    recompute_seconds: float  # device time of tokens computed before
    num_steps: int
    mean_rows: float  # streams per step, over steps with streams
    mean_context: float  # tokens per stream
    peak_blocks: int  # most KV blocks held at the same time
    num_preemptions: int

    @property
    def output_rate(self) -> float:
        """Output tokens per second."""
        return self.num_output / self.seconds if self.seconds else 0.0

    @property
    def busy_seconds(self) -> float:
        """Seconds in which the device computed."""
        return self.decode_seconds + self.prompt_seconds + self.recompute_seconds

    @property
    def utilization(self) -> float:
        """Share of the time in which the device computed."""
        return min(1.0, self.busy_seconds / self.seconds) if self.seconds else 0.0

    @property
    def time_shares(self) -> dict[str, float]:
        """Shares of the device time by purpose."""
        busy = self.busy_seconds or 1.0
        return {
            "prompts": self.prompt_seconds / busy,
            "recomputation": self.recompute_seconds / busy,
            "decode": self.decode_seconds / busy,
        }


@dataclass(slots=True)
class _CallTimes:
    call: TraceCall
    arrival: float
    first: float | None = None  # time of the first token
    last: float = 0.0
    num_sampled: int = 0
    num_hit: int = 0


@dataclass(slots=True)
class _Device:
    """A device whose steps take the time of a roofline. Sums the time by purpose."""

    roofline: Roofline
    block_tokens: int
    calls: dict[str, _CallTimes]
    decode_seconds: float = 0.0
    prompt_seconds: float = 0.0
    recompute_seconds: float = 0.0
    num_steps: int = 0
    num_stream_steps: int = 0
    num_rows: int = 0
    num_context: int = 0
    seen: dict[CacheKey, set[int]] = field(default_factory=dict)

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step; return its result and its seconds."""
        results: list[PartResult] = []
        num_rows = stream_context = num_prompt = num_recomputed = read = attended = 0
        for part in plan.parts:
            call_times = self.calls[part.request_id]
            if part.tokens is None:
                num_rows += 1
                stream_context += part.start + 1
            else:
                count = len(part.tokens)
                num_prompt += count
                num_recomputed += self._count_seen(call_times.call.key, part.tokens)
                prompt = prompt_work(count, part.start)
                read += prompt.read_context
                attended += prompt.attended
            results.append(self._sample(call_times) if part.num_logits else PartResult())
        shared = sum((len(group.rows) - 1) * group.num_blocks * self.block_tokens for group in plan.groups)
        unshared = max(0, stream_context - shared)
        streams = self.roofline.seconds(StepWork(num_rows, unshared, stream_context, num_rows))
        work = StepWork(num_rows + num_prompt, unshared + read, stream_context + attended, len(plan.parts))
        seconds = self.roofline.seconds(work)
        recompute = (seconds - streams) * num_recomputed / num_prompt if num_prompt else 0.0
        self.decode_seconds += streams
        self.recompute_seconds += recompute
        self.prompt_seconds += seconds - streams - recompute
        self.num_steps += 1
        self.num_stream_steps += bool(num_rows)
        self.num_rows += num_rows
        self.num_context += stream_context
        return StepResult(plan.number, tuple(results), seconds)

    def _count_seen(self, key: CacheKey, marks: Sequence[int]) -> int:
        seen = self.seen.setdefault(key, set())
        count = sum(mark in seen for mark in marks)
        seen.update(marks)
        return count

    def _sample(self, call_times: _CallTimes) -> PartResult:
        call_times.num_sampled += 1
        index = min(call_times.num_sampled, call_times.call.num_output) - 1
        return PartResult((call_times.call.output[index] if index >= 0 else 0,))


class Simulation:
    """A server with a simulated clock."""

    def __init__(self, roofline: Roofline, config: SchedulerConfig, num_blocks: int, block_tokens: int = 16) -> None:
        self._cache = KVCache(num_blocks, block_tokens)
        self._scheduler = Scheduler(self._cache, config)
        self._calls: dict[str, _CallTimes] = {}
        self._device = _Device(roofline, block_tokens, self._calls)
        self._now = 0.0
        self._num_refused = 0
        self._num_preemptions = 0
        self._peak_blocks = 0

    def run(self, workload: TraceWorkload) -> SimulationResult:
        """Serve the whole workload."""
        waiting = deque(enumerate(workload.calls))
        while True:
            while waiting and waiting[0][1].time <= self._now:
                self._submit(*waiting.popleft())
            if not self._step():
                if not waiting:
                    break
                self._now = max(self._now, waiting[0][1].time)
        return self._result()

    def _submit(self, index: int, call: TraceCall) -> None:
        name = str(index)
        sampling = SamplingParams(max_tokens=max(1, call.num_output), ignore_eos=True)
        request = GenerateRequest(
            name, tuple(call.marks), sampling, key=call.key.salt, cache=call.key, session=call.session
        )
        try:
            self._scheduler.add(request, self._now)
        except QuireError:
            self._num_refused += 1
            return
        self._calls[name] = _CallTimes(call, call.time)

    def _step(self) -> bool:
        plan = self._scheduler.plan(self._now)
        if not (plan.parts or plan.joins):
            self._record(self._scheduler.drain())
            return False
        self._peak_blocks = max(self._peak_blocks, self._cache.stats().num_held)
        result = self._device.run(plan)
        self._now += result.seconds
        self._scheduler.commit(result, self._now)
        self._record(self._scheduler.drain())
        return True

    def _record(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            call_times = self._calls[outcome.request_id]
            call_times.num_hit = max(call_times.num_hit, outcome.num_hit)
            if outcome.tokens and call_times.first is None:
                call_times.first = self._now
            call_times.last = self._now

    def _result(self) -> SimulationResult:
        calls, device = list(self._calls.values()), self._device
        firsts = [(each.first or each.last) - each.arrival for each in calls]
        gaps = [
            (each.last - (each.first or each.last)) / (each.call.num_output - 1)
            for each in calls
            if each.call.num_output > 1
        ]
        queried = sum(each.call.num_prompt for each in calls)
        return SimulationResult(
            num_calls=len(calls),
            num_refused=self._num_refused,
            seconds=max((each.last for each in calls), default=0.0),
            num_output=sum(each.call.num_output for each in calls),
            hit_rate=sum(each.num_hit for each in calls) / queried if queried else 0.0,
            first_token=Distribution.of(firsts),
            token_gap=Distribution.of(gaps),
            end_to_end=Distribution.of([each.last - each.arrival for each in calls]),
            concurrency=concurrency_of([(each.arrival, each.last) for each in calls], is_measured=False),
            decode_seconds=device.decode_seconds,
            prompt_seconds=device.prompt_seconds,
            recompute_seconds=device.recompute_seconds,
            num_steps=device.num_steps,
            mean_rows=device.num_rows / max(1, device.num_stream_steps),
            mean_context=device.num_context / max(1, device.num_rows),
            peak_blocks=self._peak_blocks,
            num_preemptions=self._scheduler.stats().num_preemptions,
        )


def busiest_part(workload: TraceWorkload, limit: SimulationLimit) -> TraceWorkload:
    """Return the workload if it is within the limit, else its busiest run of consecutive calls."""
    calls = workload.calls
    start = output = prompt = 0
    best, shortest = (0, len(calls)), float("inf")
    for end, call in enumerate(calls):
        output, prompt = output + call.num_output, prompt + call.num_prompt
        while end > start and (end - start >= limit.calls or output > limit.output or prompt > limit.prompt):
            output, prompt = output - calls[start].num_output, prompt - calls[start].num_prompt
            start += 1
            per_call = (calls[end - 1].time - calls[start - 1].time) / (end - start + 1)
            if per_call < shortest:
                best, shortest = (start - 1, end), per_call
    return workload if best == (0, len(calls)) else workload.with_calls(calls[slice(*best)])
