"""Every metric, named once, with the name that dashboards made for vLLM know it by.

`core_samples` turns the statistics of cache and scheduler into samples; whoever serves `/metrics` renders them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """How a metric behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):
    """A metric's declaration."""

    name: str
    kind: Kind
    help: str
    alias: str | None = None  # vLLM's name for the same number
    label: str | None = None


class Sample(NamedTuple):
    """One value of a metric."""

    metric: Metric
    value: float
    label: str | None = None


STEP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

REQUESTS_RUNNING = Metric(
    "quire_requests_running", Kind.GAUGE, "Requests that have a row.", "vllm:num_requests_running"
)
REQUESTS_WAITING = Metric("quire_requests_waiting", Kind.GAUGE, "Requests in the queue.", "vllm:num_requests_waiting")
PREEMPTIONS = Metric("quire_preemptions", Kind.COUNTER, "Requests put off for others.", "vllm:num_preemptions")
PROMISED_WAIT = Metric("quire_promised_wait_seconds", Kind.GAUGE, "Wait of a request that arrives now.")
KV_BLOCKS = Metric("quire_kv_blocks", Kind.GAUGE, "KV blocks by state: free, held, cached.", label="state")
KV_USAGE = Metric("quire_kv_usage", Kind.GAUGE, "Share of KV blocks that are held.", "vllm:kv_cache_usage_perc")
SESSIONS = Metric("quire_sessions", Kind.GAUGE, "Conversations that hold their last context.")
PREFIX_QUERIED = Metric(
    "quire_prefix_queried_tokens", Kind.COUNTER, "Prompt tokens looked up.", "vllm:prefix_cache_queries"
)
PREFIX_HIT = Metric("quire_prefix_hit_tokens", Kind.COUNTER, "Of those, found.", "vllm:prefix_cache_hits")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def core_samples(cache: Mapping[str, float], scheduler: Mapping[str, float]) -> Iterator[Sample]:
    """Samples from the fields of `CacheStats` and `SchedulerStats`."""
    yield Sample(REQUESTS_RUNNING, scheduler["num_running"])
    yield Sample(REQUESTS_WAITING, scheduler["num_waiting"])
    yield Sample(PREEMPTIONS, scheduler["num_preemptions"])
    yield Sample(PROMISED_WAIT, scheduler["promised_wait"])
    for state in ("free", "held", "cached"):
        yield Sample(KV_BLOCKS, cache[f"num_{state}"], state)
    yield Sample(KV_USAGE, cache["num_held"] / cache["num_blocks"])
    yield Sample(SESSIONS, cache["num_sessions"])
    yield Sample(PREFIX_QUERIED, cache["queried_tokens"])
    yield Sample(PREFIX_HIT, cache["hit_tokens"])


def render(samples: Iterator[Sample]) -> str:
    """The Prometheus text format, each sample also under its alias. Counters get the suffix that it asks for."""
    lines: list[str] = []
    told: set[str] = set()
    for metric, value, label in samples:
        suffix = "_total" if metric.kind is Kind.COUNTER else ""
        labels = f'{{{metric.label}="{label}"}}' if label is not None else ""
        for name in (metric.name, metric.alias):
            if name is None:
                continue
            if name not in told:
                told.add(name)
                lines += [f"# HELP {name}{suffix} {metric.help}", f"# TYPE {name}{suffix} {metric.kind}"]
            lines.append(f"{name}{suffix}{labels} {value:g}")
    return "\n".join(lines) + "\n"
