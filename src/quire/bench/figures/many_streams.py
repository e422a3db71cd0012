"""Figures of many streams, of our engine and of peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

from quire.bench.figures.cpu_goals import COLD_PREFIX, FIRST_TOKEN, CpuGoals
from quire.bench.figures.cpu_results import StreamsComparison
from quire.bench.figures.figure import Figure, Goal, at_most
from quire.bench.load.stream_loads import (
    COLD_STREAMS,
    OUTPUT_TOKENS,
    OWN_TOKENS,
    SHARED_TOKENS,
    UNIQUE_TOKENS,
    StreamResults,
)

UNIQUE_NOTE = f"{UNIQUE_TOKENS} tokens in, {OUTPUT_TOKENS} out"
SHARED_NOTE = f"{SHARED_TOKENS} shared + {OWN_TOKENS} own tokens in, {OUTPUT_TOKENS} out"
GAP, MEMORY = at_most(0.5), at_most(600)  # seconds, MB

Value = Callable[[StreamResults], float | None]


def unique_figure(streams: StreamsComparison, goal: Goal | None, label: str = "") -> Figure:
    """Return the output rate of streams that share nothing. `label`: of the model, where there are several."""
    name = _name("unique", streams, label)
    return next(_figures(streams, name, lambda loads: loads.unique.output_per_second, "tok/s", goal, UNIQUE_NOTE))


def shared_figures(streams: StreamsComparison, goal: Goal | None, label: str = "") -> Iterator[Figure]:
    """Yield the output rate of streams whose prompts begin with the same tokens, if it was measured."""

    def rate(loads: StreamResults) -> float | None:
        return None if loads.shared is None else loads.shared.output_per_second

    yield from _figures(streams, _name("shared", streams, label), rate, "tok/s", goal, SHARED_NOTE)


def many_streams_figures(streams: StreamsComparison, goals: CpuGoals) -> Iterator[Figure]:
    """Yield all figures of one model."""
    unique = f"unique, {streams.sizes.num_streams} streams"
    yield unique_figure(streams, goals.unique)
    first_token, gap = f"{unique}, first token p99", f"{unique}, gap between tokens p99"
    yield from _figures(streams, first_token, lambda loads: loads.unique.first_token.p99, "s", FIRST_TOKEN)
    yield from _figures(streams, gap, lambda loads: loads.unique.gap.p99, "s", GAP)
    yield from shared_figures(streams, goals.shared)
    yield from _cold(streams)
    yield from _memory(streams)


def _name(load: str, streams: StreamsComparison, label: str) -> str:
    name = f"{load}, {streams.sizes.num_streams} streams, output"
    return f"{name}, {label}" if label else name


def _figures(
    streams: StreamsComparison, name: str, value: Value, unit: str, goal: Goal | None, note: str = ""
) -> Iterator[Figure]:
    """Yield one figure, or nothing if it was not measured."""
    ours, others = value(streams.ours.loads), {peer: value(each.loads) for peer, each in streams.peers.items()}
    if ours is not None:
        peers = {peer: other for peer, other in others.items() if other is not None}
        yield Figure(name, ours, unit, goal, note, peers)


def _cold(streams: StreamsComparison) -> Iterator[Figure]:
    loads = streams.ours.loads
    if loads.cold_seconds:
        cold, alone = median(loads.cold_seconds), median(loads.alone_seconds)
        name = f"cold prefix, {COLD_STREAMS} streams: first token p99 / one prompt alone"
        note = f"median of {len(loads.cold_seconds)} alternating pairs: {cold:.2f} s, {alone:.2f} s"
        yield from _figures(streams, name, lambda loads: loads.cold_ratio, "×", COLD_PREFIX, note)


def _memory(streams: StreamsComparison) -> Iterator[Figure]:
    if streams.ours.peak_bytes is not None:
        sizes = {peer: each.peak_bytes for peer, each in streams.peers.items()}
        peers = {peer: size / 1e6 for peer, size in sizes.items() if size is not None}
        name = f"peak resident memory, {streams.sizes.num_streams} streams"
        yield Figure(name, streams.ours.peak_bytes / 1e6, "MB", MEMORY, peers=peers)
