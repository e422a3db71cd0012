"""Synthetic traces whose answers are known, as OpenAI bodies with token ids: what is shared is exact."""

from __future__ import annotations

import json
import random
from typing import Any

from quire.advisor.prompts import Marker
from quire.advisor.workload import Workload, workload_of
from quire.report.trace import parse_trace

VOCABULARY = 1000
MARKER = Marker()


def line(time: float, tokens: list[int], output: int = 50, **more: Any) -> dict[str, Any]:
    body = {"model": more.pop("model", "m"), "prompt": tokens, "max_tokens": output} | more
    return {"time": time, "path": "/v1/completions", "body": body, "usage": {"completion_tokens": output}}


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def shared(count: int = 200, gap: float = 0.5, seed: int = 0) -> list[dict[str, Any]]:
    """340 of 400 tokens are everybody's: 85 %."""
    rng = random.Random(seed)
    prefix = ids(rng, 340)
    return [line(at * gap, prefix + ids(rng, 60)) for at in range(count)]


def unique(count: int = 100, gap: float = 0.5) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [line(at * gap, [VOCABULARY + at, *ids(rng, 299)]) for at in range(count)]


def bursty() -> list[dict[str, Any]]:
    """Ten bursts of twenty, a minute apart."""
    rng = random.Random(2)
    return [line(60.0 * burst + 0.01 * at, ids(rng, 200)) for burst in range(10) for at in range(20)]


def two_tenants() -> list[dict[str, Any]]:
    """Both begin with the same 160 tokens, and neither may find the other's; one asks three times as often."""
    rng = random.Random(3)
    prefix = ids(rng, 160)
    whose = ["a" if at % 4 else "b" for at in range(80)]
    return [line(at * 1.0, prefix + ids(rng, 40), cache_salt=name) for at, name in enumerate(whose)]


def batch(count: int = 300) -> list[dict[str, Any]]:
    rng = random.Random(4)
    lines = [line(0.0, ids(rng, 200)) for _ in range(count)]
    return [{name: value for name, value in each.items() if name != "time"} for each in lines]


def workload(lines: list[dict[str, Any]]) -> Workload:
    return workload_of(parse_trace(map(json.dumps, lines), "trace"), MARKER)
