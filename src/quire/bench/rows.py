"""The figures of a load as rows: how each is called, in which unit it is shown, and whether more of it is better.

Every table, file and plot takes its figures from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from quire.bench.summary import Spread, Summary
from quire.bench.table import number

MILLI, MEGA = 1e-3, 1e6
SPREADS = {"ttft_ms": "first_token", "tpot_ms": "per_token", "itl_ms": "gap", "e2el_ms": "whole"}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `key` is its name in files, which is that of vLLM's benchmark where it has one."""

    key: str
    label: str
    unit: str
    of: Callable[[Summary], float | None]
    better: Literal["more", "less", ""] = ""

    def shown(self, summary: Summary) -> str:
        """With its unit."""
        value = self.of(summary)
        if value is None:
            return "–"
        return f"{value:.0%}" if self.unit == "%" else f"{number(value)} {self.unit}".strip()


def _spread(name: str, part: str) -> Callable[[Summary], float]:
    return lambda summary: float(getattr(getattr(summary, name), part)) / MILLI


def _memory(summary: Summary) -> float | None:
    return None if summary.around.memory_bytes is None else summary.around.memory_bytes / MEGA


def _gpu(summary: Summary) -> float | None:
    return None if summary.around.gpu_bytes is None else summary.around.gpu_bytes / MEGA


ROWS = (
    Row("output_throughput", "output", "tok/s", lambda s: s.output_per_second, "more"),
    Row("total_token_throughput", "input and output", "tok/s", lambda s: s.total_per_second, "more"),
    Row("request_throughput", "requests", "/s", lambda s: s.requests_per_second, "more"),
    Row("request_goodput", "requests within the limits", "/s", lambda s: s.goodput, "more"),
    Row("p50_ttft_ms", "first token, p50", "ms", _spread("first_token", "p50"), "less"),
    Row("p99_ttft_ms", "first token, p99", "ms", _spread("first_token", "p99"), "less"),
    Row("p50_tpot_ms", "per output token, p50", "ms", _spread("per_token", "p50"), "less"),
    Row("p99_tpot_ms", "per output token, p99", "ms", _spread("per_token", "p99"), "less"),
    Row("p50_itl_ms", "gap between events, p50", "ms", _spread("gap", "p50"), "less"),
    Row("p99_itl_ms", "gap between events, p99", "ms", _spread("gap", "p99"), "less"),
    Row("p50_e2el_ms", "whole answer, p50", "ms", _spread("whole", "p50"), "less"),
    Row("p99_e2el_ms", "whole answer, p99", "ms", _spread("whole", "p99"), "less"),
    Row("completed", "answers", "", lambda s: s.num_good),
    Row("failed", "errors", "", lambda s: s.num_requests - s.num_good, "less"),
    Row("cached_share", "prompt tokens from the cache", "%", lambda s: s.cached_share, "more"),
    Row("memory_mb", "memory of the server", "MB", _memory, "less"),
    Row("gpu_memory_mb", "memory on the GPU", "MB", _gpu, "less"),
    Row("cost_per_million_output", "cost of a million output tokens", "", lambda s: s.cost_per_million_output, "less"),
    Row("cost_per_million_total", "cost of a million tokens", "", lambda s: s.cost_per_million_total, "less"),
)
BY_KEY = {row.key: row for row in ROWS}


def flat(summary: Summary) -> dict[str, Any]:
    """Every figure under one name, for files: times in milliseconds."""
    named: dict[str, Any] = {row.key: row.of(summary) for row in ROWS}
    named |= dict(_all_spreads(summary))
    return named | {
        "duration": summary.seconds,
        "total_input_tokens": summary.prompt_tokens,
        "total_output_tokens": summary.output_tokens,
        "total_cached_tokens": summary.cached_tokens,
        "generator_delay_p50_ms": summary.around.own_delay.p50 / MILLI,
        "generator_delay_p99_ms": summary.around.own_delay.p99 / MILLI,
        "generator_delay_max_ms": summary.around.own_delay.max / MILLI,
        "generator_late_p99_ms": summary.lateness.p99 / MILLI,
        "generator_core_share": summary.around.processor_share,
    }


def _all_spreads(summary: Summary) -> Iterator[tuple[str, float]]:
    for key, name in SPREADS.items():
        for part in fields(Spread):
            yield f"{part.name}_{key}", float(getattr(getattr(summary, name), part.name)) / MILLI
