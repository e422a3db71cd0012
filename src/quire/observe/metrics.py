"""The declaration of every metric, with the name that vLLM has for it where it has one.

`engine_samples` makes samples of an engine's counters, `meters.py` of what the server itself counts; `exposition.py`
writes them as text. Every sample has the label `model`, which vLLM calls `model_name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import zip_longest
from typing import Any, NamedTuple

from quire.observe.histogram import HistogramValue

STEP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
GAP_SECONDS = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
REQUEST_SECONDS = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 7.5, 10.0),
    *(15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0),
)


class MetricKind(StrEnum):
    """How a metric behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """A metric's declaration."""

    name: str
    kind: MetricKind
    help: str
    alias: str | None = None  # vLLM's name for the metric
    label: str | None = None  # the label beside `model`
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets
    alias_label: str | None = None  # vLLM's name for the label, where it differs


class MetricSample(NamedTuple):
    """One value of a metric."""

    metric: Metric
    value: float | HistogramValue
    model: str
    label: str | None = None


REQUESTS_RUNNING = Metric("quire_requests_running", MetricKind.GAUGE, "Running requests.", "vllm:num_requests_running")
REQUESTS_WAITING = Metric("quire_requests_waiting", MetricKind.GAUGE, "Waiting requests.", "vllm:num_requests_waiting")
PREEMPTIONS = Metric("quire_preemptions", MetricKind.COUNTER, "Preempted requests.", "vllm:num_preemptions")
PROMISED_WAIT = Metric("quire_promised_wait_seconds", MetricKind.GAUGE, "Estimated wait of a request that arrives now.")
KV_BLOCKS = Metric("quire_kv_blocks", MetricKind.GAUGE, "KV blocks by state: free, held, cached.", label="state")
WINDOW_BLOCKS = Metric(
    "quire_window_blocks",
    MetricKind.GAUGE,
    "KV blocks of layers that keep only the last tokens, by state: free, held, cached.",
    label="state",
)
STATES = Metric(
    "quire_states",
    MetricKind.GAUGE,
    "States of recurrent layers: all, held by requests, and checkpoints to resume from.",
    label="state",
)
KV_USAGE = Metric(
    "quire_kv_usage",
    MetricKind.GAUGE,
    "Share of KV blocks that are held; of window blocks or states, if that is more.",
    "vllm:kv_cache_usage_perc",
)
SESSIONS = Metric("quire_sessions", MetricKind.GAUGE, "Sessions that keep their last context cached.")
PREFIX_QUERIED = Metric(
    "quire_prefix_queried_tokens",
    MetricKind.COUNTER,
    "Prompt tokens looked up.",
    "vllm:prefix_cache_queries",
)
PREFIX_HIT = Metric(
    "quire_prefix_hit_tokens", MetricKind.COUNTER, "Prompt tokens found in the cache.", "vllm:prefix_cache_hits"
)
STEPS = Metric(
    "quire_step_seconds",
    MetricKind.HISTOGRAM,
    "Time of a step by part: plan and commit in the scheduler, run on the device.",
    label="part",
    bounds=STEP_SECONDS,
)
FETCHES = Metric("quire_fetches", MetricKind.COUNTER, "Prefixes fetched from other engines.")
FAILED_FETCHES = Metric("quire_failed_fetches", MetricKind.COUNTER, "Fetches that ended early; the rest was computed.")
FETCHED_TOKENS = Metric("quire_fetched_tokens", MetricKind.COUNTER, "Tokens whose KV came from other engines.")
SENT_TOKENS = Metric("quire_sent_tokens", MetricKind.COUNTER, "Tokens whose KV was sent to other engines.")
FETCH_SECONDS = Metric("quire_fetch_seconds", MetricKind.COUNTER, "Duration of fetches, including waiting.")
RESTARTS = Metric("quire_engine_restarts", MetricKind.COUNTER, "Engine restarts after a crash.")
COMPUTED = Metric("quire_computed_tokens", MetricKind.COUNTER, "Computed tokens, prompts and answers.")
PADDED = Metric(
    "quire_padded_tokens", MetricKind.COUNTER, "Padding tokens computed to reach the size of a captured step."
)

DRAFTED = Metric(
    "quire_drafted_tokens",
    MetricKind.COUNTER,
    "Tokens that were drafted and verified, by drafter.",
    "vllm:spec_decode_num_draft_tokens",
    label="drafter",
)
DRAFTS_ACCEPTED = Metric(
    "quire_accepted_drafts",
    MetricKind.COUNTER,
    "Drafted tokens that became output, by drafter.",
    "vllm:spec_decode_num_accepted_tokens",
    label="drafter",
)

DRAFTS = Metric(
    "quire_drafts",
    MetricKind.COUNTER,
    "Drafts of one or more tokens that were verified.",
    "vllm:spec_decode_num_drafts",
)
DRAFTS_BY_POSITION = Metric(
    "quire_accepted_drafts_by_position",
    MetricKind.COUNTER,
    "Drafted tokens that became output, by their place in the draft, from 0.",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    label="position",
)

QUEUE_TIME = Metric(
    "quire_queue_seconds",
    MetricKind.HISTOGRAM,
    "Time that a request waited in the queue.",
    "vllm:request_queue_time_seconds",
    bounds=REQUEST_SECONDS,
)
FIRST_TOKEN = Metric(
    "quire_first_token_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's arrival to its first token.",
    "vllm:time_to_first_token_seconds",
    bounds=REQUEST_SECONDS,
)
TOKEN_GAP = Metric(
    "quire_token_gap_seconds",
    MetricKind.HISTOGRAM,
    "Time between two tokens of a stream.",
    "vllm:inter_token_latency_seconds",
    bounds=GAP_SECONDS,
)
REQUEST_TIME = Metric(
    "quire_request_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's arrival to its end.",
    "vllm:e2e_request_latency_seconds",
    bounds=REQUEST_SECONDS,
)
PROMPT_TOKENS = Metric("quire_prompt_tokens", MetricKind.COUNTER, "Prompt tokens.", "vllm:prompt_tokens")
PROMPT_SOURCES = Metric(
    "quire_prompt_tokens_by_source", MetricKind.COUNTER, "Prompt tokens by source: computed or cached.", label="source"
)
OUTPUT_TOKENS = Metric("quire_output_tokens", MetricKind.COUNTER, "Output tokens.", "vllm:generation_tokens")
OUTPUT_SOURCES = Metric(
    "quire_output_tokens_by_source",
    MetricKind.COUNTER,
    "Output tokens by source: sampled, forced or drafted.",
    label="source",
)
ENDED = Metric(
    "quire_answers_ended",
    MetricKind.COUNTER,
    "Answers without an error, by finish reason.",
    "vllm:request_success",
    label="reason",
    alias_label="finished_reason",
)
REFUSED = Metric("quire_requests_refused", MetricKind.COUNTER, "Requests that failed, by error code.", label="code")

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def engine_samples(model: str, counters: Mapping[str, Any]) -> Iterator[MetricSample]:
    """Samples from the fields of an engine's `Counters`, and its `kv_usage`."""
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
        (FETCHES, "num_fetches"),
        (FAILED_FETCHES, "num_failed_fetches"),
        (FETCHED_TOKENS, "fetched_tokens"),
        (SENT_TOKENS, "sent_tokens"),
        (FETCH_SECONDS, "fetch_seconds"),
        (DRAFTS, "num_drafts"),
    ):
        yield MetricSample(metric, counters[field], model)
    for state in ("free", "held", "cached"):
        yield MetricSample(KV_BLOCKS, counters[f"num_{state}_blocks"], model, state)
    yield from _group_samples(model, counters)
    for metric, field in ((DRAFTED, "drafted_tokens"), (DRAFTS_ACCEPTED, "accepted_drafts")):
        yield from (MetricSample(metric, count, model, drafter) for drafter, count in sorted(counters[field].items()))
    for place, count in enumerate(counters["accepted_by_position"] or (0,)):
        if count or not place:
            yield MetricSample(DRAFTS_BY_POSITION, count, model, str(place))
    yield MetricSample(KV_USAGE, counters["kv_usage"], model)
    for part in ("plan", "run", "commit"):
        yield MetricSample(STEPS, HistogramValue(*counters[part]), model, part)


def _group_samples(model: str, counters: Mapping[str, Any]) -> Iterator[MetricSample]:
    """Samples of window groups and of states: 0 for models without them."""
    held, cached = counters["num_held_window_blocks"], counters["num_cached_window_blocks"]
    free = counters["num_window_blocks"] - held - cached
    for state, count in (("free", free), ("held", held), ("cached", cached)):
        yield MetricSample(WINDOW_BLOCKS, count, model, state)
    for state, field in (("all", "num_states"), ("held", "num_held_states"), ("checkpoint", "num_checkpoints")):
        yield MetricSample(STATES, counters[field], model, state)


def sum_samples(samples: Iterable[MetricSample]) -> list[MetricSample]:
    """Add up the samples of several processes: one for each metric, model and label."""
    totals: dict[tuple[Metric, str, str | None], float | HistogramValue] = {}
    for metric, value, model, label in samples:
        before = totals.get((metric, model, label))
        totals[metric, model, label] = value if before is None else _add(before, value)
    return [MetricSample(metric, value, model, label) for (metric, model, label), value in totals.items()]


def _add(one: float | HistogramValue, other: float | HistogramValue) -> float | HistogramValue:
    if not isinstance(one, HistogramValue):
        assert not isinstance(other, HistogramValue)
        return one + other
    assert isinstance(other, HistogramValue)
    counts = zip_longest(one.counts, other.counts, fillvalue=0)
    return HistogramValue(tuple(map(sum, counts)), one.total + other.total)
