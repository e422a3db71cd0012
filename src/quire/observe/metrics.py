"""Every metric, named once, with the name that dashboards made for vLLM know it by.

`engine_samples` turns an engine's counters into samples, `meters.py` has what a server measures itself; `render` writes
them in Prometheus' text format. Every sample has the label `model`, which vLLM calls `model_name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

from quire.observe.histogram import Spread

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STEP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
GAP_SECONDS = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
REQUEST_SECONDS = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0),
    *(15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0),
)


class Kind(StrEnum):
    """How a metric behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A metric's declaration."""

    name: str
    kind: Kind
    help: str
    alias: str | None = None  # vLLM's name for the same number
    label: str | None = None
    bounds: tuple[float, ...] = ()  # of a histogram
    alias_label: str | None = None  # vLLM's name for the label, where that is another


class Sample(NamedTuple):
    """One value of a metric."""

    metric: Metric
    value: float | Spread
    model: str
    label: str | None = None


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
STEPS = Metric(
    "quire_step_seconds",
    Kind.HISTOGRAM,
    "Time of a step by part: plan and commit in the scheduler, run on the device.",
    label="part",
    bounds=STEP_SECONDS,
)
RESTARTS = Metric("quire_engine_restarts", Kind.COUNTER, "Engines started in the place of one that died.")
COMPUTED = Metric("quire_computed_tokens", Kind.COUNTER, "Tokens computed in steps, of prompts and answers.")
PADDED = Metric("quire_padded_tokens", Kind.COUNTER, "Tokens computed for nobody, to fill steps up to captured sizes.")

QUEUE_TIME = Metric(
    "quire_queue_seconds",
    Kind.HISTOGRAM,
    "Time that a request waited before it first ran.",
    "vllm:request_queue_time_seconds",
    bounds=REQUEST_SECONDS,
)
FIRST_TOKEN = Metric(
    "quire_first_token_seconds",
    Kind.HISTOGRAM,
    "Time from a request's arrival to its first token.",
    "vllm:time_to_first_token_seconds",
    bounds=REQUEST_SECONDS,
)
TOKEN_GAP = Metric(
    "quire_token_gap_seconds",
    Kind.HISTOGRAM,
    "Time between two tokens of a stream.",
    "vllm:inter_token_latency_seconds",
    bounds=GAP_SECONDS,
)
REQUEST_TIME = Metric(
    "quire_request_seconds",
    Kind.HISTOGRAM,
    "Time from a request's arrival to its end.",
    "vllm:e2e_request_latency_seconds",
    bounds=REQUEST_SECONDS,
)
PROMPT_TOKENS = Metric("quire_prompt_tokens", Kind.COUNTER, "Tokens of prompts.", "vllm:prompt_tokens")
PROMPT_SOURCES = Metric(
    "quire_prompt_tokens_by_source", Kind.COUNTER, "The same by source: computed or cached.", label="source"
)
OUTPUT_TOKENS = Metric("quire_output_tokens", Kind.COUNTER, "Tokens of answers.", "vllm:generation_tokens")
OUTPUT_SOURCES = Metric(
    "quire_output_tokens_by_source", Kind.COUNTER, "The same by source: sampled, forced or drafted.", label="source"
)
ENDED = Metric(
    "quire_answers_ended",
    Kind.COUNTER,
    "Answers that ended well, by why.",
    "vllm:request_success",
    label="reason",
    alias_label="finished_reason",
)
REFUSED = Metric("quire_requests_refused", Kind.COUNTER, "Requests that got an error, by its code.", label="code")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def engine_samples(model: str, counters: Mapping[str, Any]) -> Iterator[Sample]:
    """Samples from the fields of an engine's `Counters`."""
    for metric, field in (
        (REQUESTS_RUNNING, "num_running"),
        (REQUESTS_WAITING, "num_waiting"),
        (PREEMPTIONS, "num_preemptions"),
        (PROMISED_WAIT, "promised_wait"),
        (SESSIONS, "num_sessions"),
        (PREFIX_QUERIED, "queried_tokens"),
        (PREFIX_HIT, "hit_tokens"),
        (COMPUTED, "computed_tokens"),
        (PADDED, "padded_tokens"),
        (RESTARTS, "num_restarts"),
    ):
        yield Sample(metric, counters[field], model)
    for state in ("free", "held", "cached"):
        yield Sample(KV_BLOCKS, counters[f"num_{state}_blocks"], model, state)
    yield Sample(KV_USAGE, counters["num_held_blocks"] / max(counters["num_blocks"], 1), model)
    for part in ("plan", "run", "commit"):
        yield Sample(STEPS, Spread(*counters[part]), model, part)


def summed(samples: Iterable[Sample]) -> list[Sample]:
    """One sample for each metric, model and label: the numbers of several processes, together."""
    totals: dict[tuple[Metric, str, str | None], float | Spread] = {}
    for metric, value, model, label in samples:
        before = totals.get((metric, model, label))
        totals[metric, model, label] = value if before is None else _added(before, value)
    return [Sample(metric, value, model, label) for (metric, model, label), value in totals.items()]


def _added(one: float | Spread, other: float | Spread) -> float | Spread:
    if not isinstance(one, Spread):
        assert not isinstance(other, Spread)
        return one + other
    assert isinstance(other, Spread)
    counts = zip_longest(one.counts, other.counts, fillvalue=0)
    return Spread(tuple(map(sum, counts)), one.total + other.total)


def render(samples: Iterable[Sample]) -> str:
    """The Prometheus text format: metric by metric, and each again under its alias."""
    families: dict[Metric, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, family in families.items():
        lines += _family(metric, family, metric.name, "model", metric.label)
        if metric.alias is not None:
            lines += _family(metric, family, metric.alias, "model_name", metric.alias_label or metric.label)
    return "\n".join(lines) + "\n"


def _family(metric: Metric, family: Iterable[Sample], name: str, of_model: str, label: str | None) -> Iterator[str]:
    """Counters get the suffix that the format asks for."""
    name += "_total" if metric.kind is Kind.COUNTER else ""
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    for sample in family:
        labels = [(of_model, sample.model), *([] if label is None else [(label, sample.label or "")])]
        if isinstance(sample.value, Spread):
            yield from _histogram(name, labels, sample.value, metric.bounds)
        else:
            yield f"{name}{_written(labels)} {sample.value:.15g}"


def _histogram(name: str, labels: list[tuple[str, str]], spread: Spread, bounds: tuple[float, ...]) -> Iterator[str]:
    counts = spread.counts or (0,) * (len(bounds) + 1)
    for bound, count in zip((*map("{:g}".format, bounds), "+Inf"), accumulate(counts), strict=True):
        yield f"{name}_bucket{_written([*labels, ('le', bound)])} {count}"
    yield f"{name}_sum{_written(labels)} {spread.total:.15g}"
    yield f"{name}_count{_written(labels)} {sum(counts)}"


def _written(labels: Iterable[tuple[str, str]]) -> str:
    escaped = ((name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in labels)
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
