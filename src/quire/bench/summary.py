"""Figures out of many answers. Percentiles are numpy's; times are in seconds until somebody shows them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from quire.bench.heard import Heard
from quire.types.errors import InvalidRequest

PERCENTILES = (50, 90, 95, 99)
LIMITS = {"ttft": "first_token", "tpot": "per_token", "e2el": "seconds", "e2e": "seconds"}
MILLI = 1e-3
LATE_SHARE = 0.05  # of a time per token, that our own delay may be
BUSY = 0.9  # of a core


@dataclass(frozen=True, slots=True)
class Spread:
    """How seconds are distributed. Of nothing, all are zero."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Between two measured ones, a line."""
        if not len(seconds):
            return cls()
        values = np.asarray(seconds, np.float64)
        p50, p90, p95, p99 = (float(each) for each in np.percentile(values, PERCENTILES))
        return cls(float(values.mean()), p50, p90, p95, p99, float(values.max()))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a user still calls good, in seconds. None: any."""

    first_token: float | None = None
    per_token: float | None = None
    seconds: float | None = None

    def are_met(self, heard: Heard) -> bool:
        """By an answer. One token has no time per token."""
        if not heard.is_good:
            return False
        pairs = ((getattr(self, each.name), getattr(heard, each.name)) for each in fields(self))
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


def parse_limits(texts: Sequence[str]) -> Limits | None:
    """ttft:500 tpot:50 e2el:3000, in milliseconds, as vLLM's benchmark takes them. None if there are none."""
    found: dict[str, float] = {}
    for text in (part for each in texts for part in each.replace(",", " ").split()):
        name, _, number = text.partition(":")
        try:
            found[LIMITS[name]] = float(number) * MILLI
        except (KeyError, ValueError):
            known = ", ".join(f"{each}:MILLISECONDS" for each in LIMITS)
            raise InvalidRequest(f"{text!r} is no limit: write {known}.", field="goodput") from None
    return Limits(**found) if found else None


@dataclass(frozen=True, slots=True)
class Around:
    """What was measured beside the answers, of this process and of the server's."""

    own_delay: Spread = field(default_factory=Spread)
    processor_share: float = 0.0  # of a core, taken by this process
    memory_bytes: int | None = None  # the most that the server's processes had
    gpu_bytes: int | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """One load on one server."""

    load: str
    num_requests: int
    num_good: int
    errors: dict[str, int]
    seconds: float  # from the first request to the last end
    prompt_tokens: int
    cached_tokens: int | None  # None: the server does not say
    output_tokens: int
    output_per_second: float
    total_per_second: float
    requests_per_second: float
    first_token: Spread
    per_token: Spread
    gap: Spread
    whole: Spread
    goodput: float | None  # requests a second within the limits; None: there are none
    lateness: Spread  # of requests, behind the time when they were due
    around: Around
    concerns: tuple[str, ...]  # what a reader has to know to judge the figures

    @property
    def cached_share(self) -> float | None:
        """Of the prompts' tokens, those that the server had computed before."""
        return None if self.cached_tokens is None else self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def cost_per_million_output(self) -> float | None:
        """Of tokens that it made, at the price of the machine."""
        return self._cost(self.output_per_second)

    @property
    def cost_per_million_total(self) -> float | None:
        """Of tokens that it read and made."""
        return self._cost(self.total_per_second)

    def _cost(self, per_second: float) -> float | None:
        price = self.around.price_per_hour
        return None if price is None or not per_second else price / 3600 / per_second * 1e6


def summarize(load: str, heard: Sequence[Heard], limits: Limits | None, around: Around) -> Summary:
    """All figures of these answers."""
    good = [each for each in heard if each.is_good]
    seconds = max((each.ended for each in heard), default=0.0) - min((each.sent for each in heard), default=0.0)
    per_second = 1 / seconds if seconds > 0 else 0.0
    prompt_tokens = sum(each.prompt_tokens or 0 for each in good)
    output_tokens = sum(each.num_tokens for each in good)
    cached = [each.cached_tokens for each in good if each.cached_tokens is not None]
    made: dict[str, Any] = {
        "per_token": Spread.of([each.per_token for each in good if each.per_token is not None]),
        "goodput": sum(map(limits.are_met, good)) * per_second if limits is not None else None,
        "lateness": Spread.of([each.sent - each.due for each in heard]),
    }
    return Summary(
        load=load,
        num_requests=len(heard),
        num_good=len(good),
        errors=dict(Counter(each.error or "an empty answer" for each in heard if not each.is_good).most_common()),
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        cached_tokens=sum(cached) if cached else None,
        output_tokens=output_tokens,
        output_per_second=output_tokens * per_second,
        total_per_second=(prompt_tokens + output_tokens) * per_second,
        requests_per_second=len(good) * per_second,
        first_token=Spread.of([each.first_token for each in good]),
        gap=Spread.of([gap for each in good for gap in each.gaps]),
        whole=Spread.of([each.seconds for each in good]),
        around=around,
        concerns=tuple(_concerns(good, around, made["per_token"].p50)),
        **made,
    )


def _concerns(good: Sequence[Heard], around: Around, per_token: float) -> list[str]:
    said = []
    if unsaid := sum(each.output_tokens is None for each in good):
        said.append(f"{unsaid} answers came without usage: each event of them is counted as a token.")
    short = [each for each in good if each.must_reach and each.num_tokens < each.max_tokens]
    if short:
        mean = sum(each.num_tokens / each.max_tokens for each in short) / len(short)
        said.append(f"{len(short)} answers ended early, at {mean:.0%} of the tokens that were asked for.")
    if more := sum(len(each.stamps) > each.num_tokens for each in good):
        said.append(f"{more} answers came in more events than the tokens that their usage counts.")
    if broken := sum(each.wants_json and not _is_json("".join(each.text)) for each in good):
        said.append(f"{broken} answers are not the JSON that was asked for.")
    if per_token and around.own_delay.p99 > LATE_SHARE * per_token:
        late = around.own_delay.p99 / MILLI
        said.append(f"The generator itself was up to {late:.2f} ms late (99th percentile): short times are inexact.")
    if around.processor_share > BUSY:
        said.append(f"The generator took {around.processor_share:.0%} of a core: the server may be faster than this.")
    return said


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
