"""Runs all stages: summarize the trace, size the cache, simulate, evaluate changes, recommend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.advisor.cache_replay import CacheHits, blocks_without_eviction, hit_curve, replay_cache
from quire.advisor.comparison import Comparison
from quire.advisor.kv_memory import KVMemory, estimate_kv_memory
from quire.advisor.recommendation import LOW_SHARE, Evidence, Recommendation, recommend
from quire.advisor.recommended_settings import (
    SimulatedCapacity,
    recommend_settings,
    recommended_blocks,
    recommended_context,
)
from quire.advisor.roofline import Roofline
from quire.advisor.shared_prefixes import SharedPrefixes, find_shared_prefixes
from quire.advisor.simulation import REPLAYED, SERVED, SimulationResult, busiest_part
from quire.advisor.what_if import ServingSetup, max_request_rate, run_what_ifs
from quire.advisor.workload import TraceWorkload
from quire.advisor.workload_summary import Concurrency, measured_concurrency, summarize_workload
from quire.config import Config
from quire.devices.facts import MemoryKind, available
from quire.types.errors import InvalidRequest

GPU_STEP_TOKENS = 8192
UNLIMITED_WAITING = 1 << 20
Compare = Callable[[bool, float, bool], Comparison]  # arguments: is_shared, concurrency, is_offline


@dataclass(frozen=True, slots=True)
class AdvicePlan:
    """The model, the hardware and the settings to simulate."""

    model: str  # as commands name it
    roofline: Roofline
    config: Config
    compare: Compare | None = None
    served_blocks: int | None = None  # of the server that the trace is from
    notes: tuple[str, ...] = ()
    command_names: Mapping[str, str] = field(default_factory=dict)  # of the trace's models, as commands name them
    flags: tuple[str, ...] = ()  # of `quire serve`, required by the precision
    trace_file: str = ""  # empty: the trace is not a file


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommendation with everything that was computed for it."""

    plan: AdvicePlan
    workload: TraceWorkload
    prefixes: SharedPrefixes
    curve: tuple[CacheHits, ...]
    now: CacheHits | None  # with the cache size of the trace's server
    concurrency: Concurrency
    evidence: Evidence
    recommendation: Recommendation
    notes: tuple[str, ...]


def advise_on_workload(
    workload: TraceWorkload, plan: AdvicePlan, show_status: Callable[[str], Any] = lambda text: None
) -> Advice:
    """Recommend what to run for a workload. `show_status` is called with the name of each stage."""
    if not workload.calls:
        raise InvalidRequest("Every request of the trace was refused, so there is nothing to simulate.", field="trace")
    show_status("summarizing the trace")
    summary, prefixes = summarize_workload(workload), find_shared_prefixes(workload)
    roofline, block_tokens = plan.roofline, plan.config.cache.block_tokens
    memory = estimate_kv_memory(workload, summary.context, roofline, block_tokens, prefixes.share)
    show_status("replaying it through caches of several sizes")
    sizes = [count for count in (plan.served_blocks, memory.num_blocks) if count]
    replayed = busiest_part(workload, REPLAYED)
    curve = hit_curve(replayed, block_tokens, sizes)
    now = replay_cache(workload, plan.served_blocks, block_tokens) if plan.served_blocks else None
    show_status("simulating it")
    part, context = busiest_part(workload, SERVED), recommended_context(summary, roofline.shape.max_context)
    setup = _setup(plan, memory, context, part)
    served = setup.serve(part)
    if roofline.hardware.memory_kind is MemoryKind.HOST and plan.config.cache.num_blocks is None:
        num_blocks = max(recommended_blocks(summary, curve, memory, served), -(-context // block_tokens))
        setup = replace(setup, num_blocks=num_blocks)
        served = setup.serve(part)
    request_rate = max_request_rate(setup, part)
    show_status("evaluating changes")
    part_prefixes = prefixes if part is workload else find_shared_prefixes(part)
    what_ifs = run_what_ifs(part, setup, served, part_prefixes) if memory.is_enough else []
    capacity = SimulatedCapacity(context, setup.num_blocks, roofline.hardware.memory_kind)
    concurrency = measured_concurrency(workload) or served.concurrency
    comparison = None
    if plan.compare is not None:
        comparison = plan.compare(prefixes.share > LOW_SHARE, concurrency.mean, not summary.has_times)
    evidence = Evidence(
        model=plan.model,
        summary=summary,
        shared=prefixes.share,
        memory=memory,
        roofline=roofline,
        served=served,
        max_request_rate=request_rate,
        what_ifs=what_ifs,
        settings=recommend_settings(summary, curve, memory, served, capacity),
        has_device=_has_device(roofline.hardware.device),
        comparison=comparison,
        command_names=plan.command_names,
        flags=plan.flags,
        trace_file=plan.trace_file,
    )
    notes = (*plan.notes, *_notes(workload, part, replayed, memory, served))
    recommendation = recommend(evidence)
    return Advice(plan, workload, prefixes, tuple(curve), now, concurrency, evidence, recommendation, notes)


def _has_device(name: str) -> bool:
    """Does this Quire support such a device?"""
    return name in available()


def _setup(plan: AdvicePlan, memory: KVMemory, context: int, part: TraceWorkload) -> ServingSetup:
    """Return a server with the planned settings and the largest cache that fits, at least one request's."""
    config, roofline = plan.config, plan.roofline
    scheduler = replace(config.scheduler, max_context=context + 1, max_waiting=UNLIMITED_WAITING)
    if roofline.hardware.memory_kind is MemoryKind.OWN:
        rows = max(1, min(1024, memory.capacity.paged))
        scheduler = replace(scheduler, max_step_tokens=max(GPU_STEP_TOKENS, rows), max_rows=rows)
    low = -(-context // memory.block_tokens) + 1
    high = max(low, memory.num_blocks)
    num_blocks = config.cache.num_blocks or min(high, max(blocks_without_eviction(part, memory.block_tokens), low))
    return ServingSetup(roofline, scheduler, num_blocks, memory.block_tokens)


def _notes(
    workload: TraceWorkload, part: TraceWorkload, replayed: TraceWorkload, memory: KVMemory, served: SimulationResult
) -> list[str]:
    """Return the assumptions behind the figures."""
    notes, count = [], len(workload.calls)
    if not workload.has_prompts:
        notes.append("The trace has lengths but no prompts: shared prefixes are unknown, and none are assumed.")
    if (estimated := workload.exactness["estimated"]) > 0:
        notes.append(f"The tokens of {estimated:,} prompts are estimated. Use --model to count them exactly.")
    if assumed := count - workload.num_counted:
        notes.append(f"The lengths of {assumed:,} answers are not in the trace: max_tokens is assumed, at most 512.")
    if part is not workload:
        notes.append(f"Simulated: the busiest {len(part.calls):,} of {count:,} requests.")
    if replayed is not workload:
        notes.append(f"Hit rates by cache size: of the busiest {len(replayed.calls):,} of {count:,} requests.")
    if not memory.is_enough:
        notes.append("The model does not fit: the times are those of a device with just enough memory.")
    if memory.state_bytes or memory.window_bytes:
        notes.append(
            "Some layers keep a state or only the last tokens. Their checkpoints and windows are not simulated: every "
            "prompt resumes where its cached prefix ends. Real hit rates may be lower, and times longer."
        )
    if served.num_refused:
        notes.append(f"{served.num_refused} requests exceed the context and were left out of the simulation.")
    return notes
