"""Synthetic traces with known properties, as OpenAI bodies with token ids, so that shared prefixes are exact."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from quire.advisor.prompt_marks import PromptMarker
from quire.advisor.workload import TraceWorkload, workload_of
from quire.report.trace import parse_trace

VOCABULARY = 1000
MARKER = PromptMarker()


def line(time: float, tokens: list[int], output: int = 50, **more: Any) -> dict[str, Any]:
    body = {"model": more.pop("model", "m"), "prompt": tokens, "max_tokens": output} | more
    return {"time": time, "path": "/v1/completions", "body": body, "usage": {"completion_tokens": output}}


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def shared(count: int = 200, gap: float = 0.5, seed: int = 0) -> list[dict[str, Any]]:
    """All prompts share 340 of their 400 tokens: 85 %."""
    rng = random.Random(seed)
    prefix = ids(rng, 340)
    return [line(at * gap, prefix + ids(rng, 60)) for at in range(count)]


def unique(count: int = 100, gap: float = 0.5) -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [line(at * gap, [VOCABULARY + at, *ids(rng, 299)]) for at in range(count)]


def bursty() -> list[dict[str, Any]]:
    """Ten bursts of twenty requests, a minute apart."""
    rng = random.Random(2)
    return [line(60.0 * burst + 0.01 * at, ids(rng, 200)) for burst in range(10) for at in range(20)]


def two_tenants() -> list[dict[str, Any]]:
    """Both tenants use the same 160-token prefix but must not share it; one sends three times as many requests."""
    rng = random.Random(3)
    prefix = ids(rng, 160)
    tenants = ["a" if at % 4 else "b" for at in range(80)]
    return [line(at * 1.0, prefix + ids(rng, 40), cache_salt=name) for at, name in enumerate(tenants)]


def batch(count: int = 300) -> list[dict[str, Any]]:
    rng = random.Random(4)
    lines = [line(0.0, ids(rng, 200)) for _ in range(count)]
    return [{name: value for name, value in each.items() if name != "time"} for each in lines]


def workload(lines: list[dict[str, Any]]) -> TraceWorkload:
    return workload_of(parse_trace(map(json.dumps, lines), "trace"), MARKER)


def write_trace(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)))
    return path
