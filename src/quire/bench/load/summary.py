"""Figures of many requests. Times are in seconds; percentiles are interpolated as numpy does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from quire.bench.load.request_result import RequestResult
from quire.types.errors import InvalidRequest

PERCENTILES = (50, 90, 95, 99)
LIMIT_NAMES = {"ttft": "first_token", "tpot": "per_token", "e2el": "seconds", "e2e": "seconds"}
MILLI = 1e-3
MAX_DELAY_SHARE = 0.05  # of the time per token: a larger delay of the generator is a concern
MAX_PROCESSOR_SHARE = 0.9  # of a core: above it the generator may be the bottleneck


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Statistics of a list of seconds; all zero for an empty list."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """Compute them, with linear interpolation."""
        if not len(seconds):
            return cls()
        values = np.asarray(seconds, np.float64)
        p50, p90, p95, p99 = (float(each) for each in np.percentile(values, PERCENTILES))
        return cls(float(values.mean()), p50, p90, p95, p99, float(values.max()))


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """The latencies, in seconds, within which a request counts for goodput. None: no limit."""

    first_token: float | None = None
    per_token: float | None = None
    seconds: float | None = None

    def are_met(self, result: RequestResult) -> bool:
        """Return whether a request meets all limits. A single token has no time per token, which meets any limit."""
        if not result.is_success:
            return False
        pairs = ((getattr(self, each.name), getattr(result, each.name)) for each in fields(self))
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


def parse_limits(texts: Sequence[str]) -> LatencyLimits | None:
    """Parse ttft:500 tpot:50 e2el:3000, in milliseconds, as vLLM's benchmark does. None if the list is empty."""
    limits: dict[str, float] = {}
    for text in (part for each in texts for part in each.replace(",", " ").split()):
        name, _, number = text.partition(":")
        try:
            limits[LIMIT_NAMES[name]] = float(number) * MILLI
        except (KeyError, ValueError):
            known = ", ".join(f"{each}:MILLISECONDS" for each in LIMIT_NAMES)
            raise InvalidRequest(f"{text!r} is not a limit: write {known}.", field="goodput") from None
    return LatencyLimits(**limits) if limits else None


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Measurements of the load generator and of the server's processes during a load."""

    generator_delay: Percentiles = field(default_factory=Percentiles)
    processor_share: float = 0.0  # of a core, used by the generator
    memory_bytes: int | None = None  # peak of the server's processes
    gpu_bytes: int | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one load on one engine."""

    load: str
    num_requests: int
    num_succeeded: int
    errors: dict[str, int]
    seconds: float  # from sending the first request to the end of the last answer
    prompt_tokens: int
    cached_tokens: int | None  # None: the server does not report them
    output_tokens: int
    output_per_second: float
    total_per_second: float
    requests_per_second: float
    first_token: Percentiles
    per_token: Percentiles
    gap: Percentiles
    end_to_end: Percentiles
    goodput: float | None  # requests a second within the limits; None: no limits
    lateness: Percentiles  # of sending a request, after it was due
    conditions: RunConditions
    concerns: tuple[str, ...]  # reasons to doubt the figures

    @property
    def cached_share(self) -> float | None:
        """Share of prompt tokens that came from the prefix cache."""
        return None if self.cached_tokens is None else self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def cost_per_million_output(self) -> float | None:
        """Price of a million output tokens, at the machine's price per hour."""
        return self._cost(self.output_per_second)

    @property
    def cost_per_million_total(self) -> float | None:
        """Price of a million input and output tokens."""
        return self._cost(self.total_per_second)

    def _cost(self, per_second: float) -> float | None:
        price = self.conditions.price_per_hour
        return None if price is None or not per_second else price / 3600 / per_second * 1e6


def summarize(
    load: str, results: Sequence[RequestResult], limits: LatencyLimits | None, conditions: RunConditions
) -> Summary:
    """Compute all figures of a load. Failed requests count as errors only."""
    good = [each for each in results if each.is_success]
    seconds = max((each.ended for each in results), default=0.0) - min((each.sent for each in results), default=0.0)
    per_second = 1 / seconds if seconds > 0 else 0.0
    prompt_tokens = sum(each.prompt_tokens or 0 for each in good)
    output_tokens = sum(each.num_tokens for each in good)
    cached = [each.cached_tokens for each in good if each.cached_tokens is not None]
    per_token = Percentiles.of([each.per_token for each in good if each.per_token is not None])
    goodput = sum(map(limits.are_met, good)) * per_second if limits is not None else None
    return Summary(
        load=load,
        num_requests=len(results),
        num_succeeded=len(good),
        errors=dict(Counter(each.error or "an empty answer" for each in results if not each.is_success).most_common()),
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(cached) if cached else None,
        output_tokens=output_tokens,
        output_per_second=output_tokens * per_second,
        total_per_second=(prompt_tokens + output_tokens) * per_second,
        requests_per_second=len(good) * per_second,
        first_token=Percentiles.of([each.first_token for each in good]),
        gap=Percentiles.of([gap for each in good for gap in each.gaps]),
        end_to_end=Percentiles.of([each.seconds for each in good]),
        conditions=conditions,
        concerns=tuple(_concerns(good, conditions, per_token.p50)),
        per_token=per_token,
        goodput=goodput,
        lateness=Percentiles.of([each.sent - each.due for each in results]),
    )


def _concerns(good: Sequence[RequestResult], conditions: RunConditions, per_token: float) -> list[str]:
    concerns = []
    if num_uncounted := sum(each.output_tokens is None for each in good):
        concerns.append(f"{num_uncounted} answers had no usage: each of their events is counted as one token.")
    short = [each for each in good if each.must_reach_max and each.num_tokens < each.max_tokens]
    if short:
        mean = sum(each.num_tokens / each.max_tokens for each in short) / len(short)
        concerns.append(f"{len(short)} answers ended early, at {mean:.0%} of the requested tokens.")
    if num_split := sum(len(each.event_times) > each.num_tokens for each in good):
        concerns.append(f"{num_split} answers had more events than their usage counts tokens.")
    if num_invalid := sum(each.expects_json and not _is_json("".join(each.text)) for each in good):
        concerns.append(f"{num_invalid} answers are not the requested JSON.")
    if per_token and conditions.generator_delay.p99 > MAX_DELAY_SHARE * per_token:
        delay = conditions.generator_delay.p99 / MILLI
        concerns.append(f"The generator was up to {delay:.2f} ms late (99th percentile): short times are inexact.")
    if conditions.processor_share > MAX_PROCESSOR_SHARE:
        concerns.append(f"The generator used {conditions.processor_share:.0%} of a core: the server may be faster.")
    return concerns


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
