"""The metrics of a load: name, unit, and whether more is better. All tables, files and plots use this list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

from quire.bench.figures.table import format_number
from quire.bench.load.summary import Percentiles, Summary

MILLI, MEGA = 1e-3, 1e6
TIMES = {"ttft_ms": "first_token", "tpot_ms": "per_token", "itl_ms": "gap", "e2el_ms": "end_to_end"}


@dataclass(frozen=True, slots=True)
class LoadMetric:
    """One metric. `key` is its name in files: that of vLLM's benchmark where it has one."""

    key: str
    label: str
    unit: str
    value: Callable[[Summary], float | None]
    better: Literal["more", "less", ""] = ""

    def format(self, summary: Summary) -> str:
        """Return the value with its unit."""
        value = self.value(summary)
        if value is None:
            return "–"
        return f"{value:.0%}" if self.unit == "%" else f"{format_number(value)} {self.unit}".strip()


def _milliseconds(time: str, statistic: str) -> Callable[[Summary], float]:
    return lambda summary: float(getattr(getattr(summary, time), statistic)) / MILLI


def _memory(summary: Summary) -> float | None:
    return None if summary.conditions.memory_bytes is None else summary.conditions.memory_bytes / MEGA


def _gpu_memory(summary: Summary) -> float | None:
    return None if summary.conditions.gpu_bytes is None else summary.conditions.gpu_bytes / MEGA


LOAD_METRICS = (
    LoadMetric("output_throughput", "output", "tok/s", lambda s: s.output_per_second, "more"),
    LoadMetric("total_token_throughput", "input and output", "tok/s", lambda s: s.total_per_second, "more"),
    LoadMetric("request_throughput", "requests", "/s", lambda s: s.requests_per_second, "more"),
    LoadMetric("request_goodput", "requests within the limits", "/s", lambda s: s.goodput, "more"),
    LoadMetric("p50_ttft_ms", "first token, p50", "ms", _milliseconds("first_token", "p50"), "less"),
    LoadMetric("p99_ttft_ms", "first token, p99", "ms", _milliseconds("first_token", "p99"), "less"),
    LoadMetric("p50_tpot_ms", "per output token, p50", "ms", _milliseconds("per_token", "p50"), "less"),
    LoadMetric("p99_tpot_ms", "per output token, p99", "ms", _milliseconds("per_token", "p99"), "less"),
    LoadMetric("p50_itl_ms", "gap between events, p50", "ms", _milliseconds("gap", "p50"), "less"),
    LoadMetric("p99_itl_ms", "gap between events, p99", "ms", _milliseconds("gap", "p99"), "less"),
    LoadMetric("p50_e2el_ms", "whole answer, p50", "ms", _milliseconds("end_to_end", "p50"), "less"),
    LoadMetric("p99_e2el_ms", "whole answer, p99", "ms", _milliseconds("end_to_end", "p99"), "less"),
    LoadMetric("completed", "answers", "", lambda s: s.num_succeeded),
    LoadMetric("failed", "errors", "", lambda s: s.num_requests - s.num_succeeded, "less"),
    LoadMetric("cached_share", "prompt tokens from the cache", "%", lambda s: s.cached_share, "more"),
    LoadMetric("memory_mb", "memory of the server", "MB", _memory, "less"),
    LoadMetric("gpu_memory_mb", "memory on the GPU", "MB", _gpu_memory, "less"),
    LoadMetric(
        "cost_per_million_output", "cost of a million output tokens", "", lambda s: s.cost_per_million_output, "less"
    ),
    LoadMetric("cost_per_million_total", "cost of a million tokens", "", lambda s: s.cost_per_million_total, "less"),
)
METRIC_BY_KEY = {metric.key: metric for metric in LOAD_METRICS}


def as_record(summary: Summary) -> dict[str, Any]:
    """Return every metric by its name in files; times are in milliseconds."""
    record: dict[str, Any] = {metric.key: metric.value(summary) for metric in LOAD_METRICS}
    record |= dict(_all_times(summary))
    delay = summary.conditions.generator_delay
    return record | {
        "duration": summary.seconds,
        "total_input_tokens": summary.prompt_tokens,
        "total_output_tokens": summary.output_tokens,
        "total_cached_tokens": summary.cached_tokens,
        "generator_delay_p50_ms": delay.p50 / MILLI,
        "generator_delay_p99_ms": delay.p99 / MILLI,
        "generator_delay_max_ms": delay.max / MILLI,
        "generator_late_p99_ms": summary.lateness.p99 / MILLI,
        "generator_core_share": summary.conditions.processor_share,
    }


def _all_times(summary: Summary) -> Iterator[tuple[str, float]]:
    for key, time in TIMES.items():
        for statistic in fields(Percentiles):
            yield f"{statistic.name}_{key}", float(getattr(getattr(summary, time), statistic.name)) / MILLI
