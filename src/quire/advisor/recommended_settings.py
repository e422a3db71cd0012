"""Quire's settings for a workload, each with its reason. Only settings that differ from the defaults are listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.advisor.cache_replay import CacheHits
from quire.advisor.kv_memory import KVMemory
from quire.advisor.number_format import count_noun, format_bytes, format_seconds
from quire.advisor.simulation import SimulationResult
from quire.advisor.workload_summary import WorkloadSummary
from quire.config import SchedulerConfig
from quire.devices.facts import MemoryKind

CONTEXT_STEP, ROWS_STEP = 1024, 16  # settings are rounded up to multiples of these
MAX_ROWS = {MemoryKind.HOST: 64, MemoryKind.OWN: 1024}  # a CPU is not faster with more rows
MARGIN, ROWS_MARGIN = 1.25, 2  # factors on what the trace needed
HOST_SHARE = 0.5  # of the memory beside the model: other programs run on a host too
HIT_RATE_LOSS = 0.01  # points of hit rate that a smaller cache may cost
FRONT_RATE = 12_000  # tokens per second that one front process streams with a reserve
OFFLINE_GAP = 5.0  # seconds between two tokens of a stream in an offline batch
LONG_WAIT = 30.0  # seconds to the first token beyond which clients give up
OFFLINE_STEP = {MemoryKind.OWN: 8192, MemoryKind.HOST: 4096}


@dataclass(frozen=True, slots=True)
class RecommendedSetting:
    """One setting of config.py, with the reason for its value."""

    name: str
    value: int | float | str
    reason: str

    @property
    def flag(self) -> str:
        """The setting on the command line."""
        return f"--{self.name.replace('_', '-')} {self.value}"


@dataclass(frozen=True, slots=True)
class SimulatedCapacity:
    """The context and cache size of the simulation."""

    context: int
    num_blocks: int
    kind: MemoryKind  # of the device


def smallest_sufficient_cache(curve: Sequence[CacheHits]) -> CacheHits:
    """Return the smallest cache whose hit rate is within HIT_RATE_LOSS of the best."""
    best = max(each.rate for each in curve)
    return next(each for each in curve if each.rate >= best - HIT_RATE_LOSS)


def recommended_context(summary: WorkloadSummary, max_context: int) -> int:
    """Return a context limit for the longest request of the trace, with a margin."""
    context = -(-int(summary.context.high * MARGIN) // CONTEXT_STEP) * CONTEXT_STEP
    return min(max(context, CONTEXT_STEP), max_context)


def recommended_blocks(
    summary: WorkloadSummary, curve: Sequence[CacheHits], memory: KVMemory, served: SimulationResult
) -> int:
    """Return the KV blocks for the hit rate and for a long request in every row, limited to what fits."""
    long_request = -(-int(summary.context.p95) // memory.block_tokens)
    rows = recommended_rows(summary, served, memory, MemoryKind.HOST)
    blocks = max(smallest_sufficient_cache(curve).num_blocks, rows * long_request)
    return max(1, min(int(blocks * MARGIN), int(memory.num_blocks * HOST_SHARE)))


def recommended_rows(summary: WorkloadSummary, served: SimulationResult, memory: KVMemory, kind: MemoryKind) -> int:
    """Return twice the peak concurrency, so that a burst runs and does not queue; limited to what fits."""
    limit = max(ROWS_STEP, memory.shared_capacity.paged)
    rows = served.concurrency.peak * ROWS_MARGIN if summary.has_times else SchedulerConfig().max_rows
    return int(max(ROWS_STEP, min(-(-int(rows) // ROWS_STEP) * ROWS_STEP, limit, MAX_ROWS[kind])))


def recommend_settings(
    summary: WorkloadSummary,
    curve: Sequence[CacheHits],
    memory: KVMemory,
    served: SimulationResult,
    capacity: SimulatedCapacity,
) -> list[RecommendedSetting]:
    """Return all settings that should differ from the defaults."""
    defaults, block_tokens = SchedulerConfig(), memory.block_tokens
    longest = f"the longest request has {summary.context.high:,.0f} tokens."
    settings = [RecommendedSetting("max_context", capacity.context, longest)]
    if capacity.kind is MemoryKind.HOST and capacity.num_blocks < memory.num_blocks:
        smallest, tokens = smallest_sufficient_cache(curve), capacity.num_blocks * block_tokens
        reason = (
            f"{tokens:,} tokens of KV in {format_bytes(tokens * memory.token_bytes)}, enough for a long request in "
            f"every row. The hit rate reaches {smallest.rate:.0%} at {smallest.num_blocks:,} blocks and does not rise "
            "beyond."
        )
        settings.append(RecommendedSetting("num_blocks", capacity.num_blocks, reason))
    rows = recommended_rows(summary, served, memory, capacity.kind)
    if rows != defaults.max_rows:
        peak = count_noun(served.concurrency.peak, "request")
        settings.append(RecommendedSetting("max_rows", rows, f"peak concurrency is {peak}."))
    if not summary.has_times:
        step = max(OFFLINE_STEP[capacity.kind], rows)
        settings.append(RecommendedSetting("max_step_tokens", step, "large steps, because latency does not matter."))
        settings.append(
            RecommendedSetting("stream_gap", OFFLINE_GAP, "prompts may delay streams, because latency does not matter.")
        )
        if summary.num_calls > defaults.max_waiting:
            settings.append(RecommendedSetting("max_waiting", summary.num_calls, "the whole batch can be queued."))
    elif served.first_token.p95 > LONG_WAIT:
        wait = format_seconds(served.first_token.p95)
        settings.append(
            RecommendedSetting("pressure", "reject", f"first tokens would take {wait} (p95); refuse excess load early.")
        )
    if served.output_rate > FRONT_RATE:
        fronts = 1 + int(served.output_rate // FRONT_RATE)
        settings.append(RecommendedSetting("fronts", fronts, "one front process streams 15,000 tokens/s."))
    return settings
