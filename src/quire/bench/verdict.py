"""What figures come to, in words: who makes more, who answers sooner, and what the reader should not believe."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from quire.bench.measure import Point
from quire.bench.outcome import Outcome
from quire.bench.rows import BY_KEY, Row
from quire.bench.table import number

ALIKE = 1.05  # times: what differs by less is not told apart
BUSY = 0.5  # of the processors: with more at work beforehand, that is measured too
FEW = 100  # answers: with less, the 99th percentile is hardly more than the largest
MEASURES = (  # the figure, what a better one is called, and what it is called if nobody is better
    ("output_throughput", "makes the most output", "output"),
    ("p50_ttft_ms", "brings the first token soonest", "time to the first token"),
    ("p50_tpot_ms", "takes the least time per token", "time per token"),
    ("p99_ttft_ms", "makes the unluckiest wait least for a first token", "99th percentile of the first token"),
)


def conclusion(outcome: Outcome) -> list[str]:
    """Sentences for each workload at its highest load, then of what belongs to an engine alone."""
    said = []
    for workload in outcome.plan.workloads:
        groups = [(load, points) for name, load, points in outcome.groups() if name == workload]
        answered = [(load, points) for load, points in groups if all(each.summary.num_good for each in points.values())]
        if not answered:
            said.append(f"{workload}: not every engine answered, so nothing can be compared.")
            continue
        load, points = answered[-1]
        said.append(f"{workload}, {load}: {' '.join(_compared(points))}")
    return [*said, *_starts(outcome), *_memory(outcome), *_doubts(outcome)]


def _compared(points: Mapping[str, Point]) -> Iterator[str]:
    if len(points) == 1:
        ((name, point),) = points.items()
        shown = [BY_KEY[key].shown(point.summary) for key, _, _ in MEASURES]
        yield (
            f"{name} makes {shown[0]}; half of the first tokens come within {shown[1]}, 99 % within {shown[3]}, "
            f"and a token takes {shown[2]}."
        )
        return
    for key, verb, noun in MEASURES:
        row = BY_KEY[key]
        values = {name: float(row.of(point.summary) or 0.0) for name, point in points.items()}
        yield _ranked(row, values, verb, noun)
    cached = {name: share for name, point in points.items() if (share := point.summary.cached_share) is not None}
    if any(share > 0.01 for share in cached.values()):
        shares = ", ".join(f"{name} {share:.0%}" for name, share in cached.items())
        yield f"Prompt tokens that came from the cache: {shares}."


def _ranked(row: Row, values: Mapping[str, float], verb: str, noun: str) -> str:
    best, *others = sorted(values, key=lambda name: values[name], reverse=row.better == "more")
    shown = f"{number(values[best])} {row.unit}"
    if times(values[best], values[others[0]]) < ALIKE:
        alike = " and ".join(f"{name} {number(values[name])} {row.unit}" for name in (best, others[0]))
        return f"In the {noun} the best two are alike ({alike})."
    if row.better == "more":
        against = (f"{number(times(values[best], values[name]))} times as much as {name}" for name in others)
    else:
        against = (f"{name} takes {number(times(values[best], values[name]))} times as long" for name in others)
    told = (f"{text} ({number(values[name])} {row.unit})" for text, name in zip(against, others, strict=True))
    return f"{best} {verb}: {shown}, {', '.join(told)}."


def times(one: float, other: float) -> float:
    """How many times the smaller the larger is."""
    high, low = max(one, other), min(one, other)
    return high / low if low else 1.0


def _starts(outcome: Outcome) -> Iterator[str]:
    seconds = {each.name: each.start_seconds for each in outcome.results if each.start_seconds is not None}
    if seconds:
        shown = ", ".join(f"{name} {number(value)} s" for name, value in sorted(seconds.items(), key=lambda x: x[1]))
        yield f"From the start of the command to the first token of an answer: {shown}."


def _memory(outcome: Outcome) -> Iterator[str]:
    most = {
        result.name: max(size for point in result.points if (size := point.summary.around.memory_bytes) is not None)
        for result in outcome.results
        if any(point.summary.around.memory_bytes is not None for point in result.points)
    }
    if most:
        shown = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in sorted(most.items(), key=lambda x: x[1]))
        yield f"The most memory that its processes had: {shown}."


def _doubts(outcome: Outcome) -> Iterator[str]:
    """What makes figures hard to believe, or engines hard to compare."""
    fewest = min((point.summary.num_good for result in outcome.results for point in result.points), default=0)
    if 0 < fewest < FEW:
        yield f"Some loads have {fewest} answers: there the 99th percentile is hardly more than the largest."
    for result in outcome.results:
        failed = sum(point.summary.num_requests - point.summary.num_good for point in result.points)
        if failed:
            first = next(error for point in result.points for error in point.summary.errors)
            yield f"{result.name} failed {failed} requests, the most by: {first}."
    count, load_before = os.cpu_count() or 1, outcome.load_before
    if load_before > BUSY * count:
        yield (
            f"This machine was busy with other work before (load {load_before:.1f} on {count} processors): whatever "
            "runs on it is measured with that company, and would be faster alone."
        )
    for workload, load, points in outcome.groups():
        counts = {name: point.summary.prompt_tokens for name, point in points.items() if point.summary.prompt_tokens}
        if counts and max(counts.values()) > min(counts.values()) * ALIKE:
            shown = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            yield (
                f"{workload}, {load}: the same prompts were counted differently ({shown} tokens): the engines had "
                "different work, or count it in another way."
            )
