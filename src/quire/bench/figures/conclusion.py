"""The conclusion of a benchmark in sentences: which engine is faster, and reasons to doubt the figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from quire.bench.figures.load_metrics import METRIC_BY_KEY, LoadMetric
from quire.bench.figures.results import BenchmarkResults, PointsByEngine
from quire.bench.figures.table import format_number

EQUAL_RATIO = 1.05  # figures within this ratio count as equal
BUSY_SHARE = 0.5  # of the processors: a higher load average before the benchmark is reported
FEW_ANSWERS = 100  # with fewer, the 99th percentile is close to the maximum
COMPARED_METRICS = (  # key, the verb of the best engine, the noun for engines that are equal
    ("output_throughput", "makes the most output", "output"),
    ("p50_ttft_ms", "brings the first token soonest", "time to the first token"),
    ("p50_tpot_ms", "takes the least time per token", "time per token"),
    ("p99_ttft_ms", "has the lowest 99th percentile of the first token", "99th percentile of the first token"),
)


def conclude(results: BenchmarkResults) -> list[str]:
    """Return sentences for each workload at its highest load, then for each engine, then the doubts."""
    sentences = []
    for workload in results.plan.workloads:
        group = results.highest_load(workload)
        if group is None:
            sentences.append(f"{workload}: not every engine answered, so nothing can be compared.")
            continue
        load, points = group
        sentences.append(f"{workload}, {load}: {' '.join(_compare(points))}")
    return [*sentences, *_starts(results), *_memory(results), *_doubts(results)]


def _compare(points: PointsByEngine) -> Iterator[str]:
    if len(points) == 1:
        ((name, point),) = points.items()
        output, first_token, per_token, late_first_token = (
            METRIC_BY_KEY[key].format(point.summary) for key, _, _ in COMPARED_METRICS
        )
        yield (
            f"{name} makes {output}; half of the first tokens come within {first_token}, 99 % within "
            f"{late_first_token}, and a token takes {per_token}."
        )
        return
    for key, verb, noun in COMPARED_METRICS:
        metric = METRIC_BY_KEY[key]
        values = {name: float(metric.value(point.summary) or 0.0) for name, point in points.items()}
        yield _ranking(metric, values, verb, noun)
    cached = {name: share for name, point in points.items() if (share := point.summary.cached_share) is not None}
    if any(share > 0.01 for share in cached.values()):
        shares = ", ".join(f"{name} {share:.0%}" for name, share in cached.items())
        yield f"Prompt tokens from the cache: {shares}."


def _ranking(metric: LoadMetric, values: Mapping[str, float], verb: str, noun: str) -> str:
    def figure(name: str) -> str:
        return f"{format_number(values[name])} {metric.unit}"

    best, *others = sorted(values, key=lambda name: values[name], reverse=metric.better == "more")
    ratios = {name: ratio_of_larger(values[best], values[name]) for name in others}
    if ratios[others[0]] < EQUAL_RATIO:
        return f"In the {noun} the best two are alike ({best} {figure(best)} and {others[0]} {figure(others[0])})."
    if metric.better == "more":
        comparisons = (f"{format_number(ratios[name])} times as much as {name} ({figure(name)})" for name in others)
    else:
        comparisons = (f"{name} takes {format_number(ratios[name])} times as long ({figure(name)})" for name in others)
    return f"{best} {verb}: {figure(best)}, {', '.join(comparisons)}."


def ratio_of_larger(one: float, other: float) -> float:
    """Return the larger value divided by the smaller; 1 if the smaller is 0."""
    high, low = max(one, other), min(one, other)
    return high / low if low else 1.0


def _starts(results: BenchmarkResults) -> Iterator[str]:
    seconds = {each.name: each.start_seconds for each in results.engines if each.start_seconds is not None}
    if seconds:
        ranked = sorted(seconds.items(), key=lambda item: item[1])
        times = ", ".join(f"{name} {format_number(value)} s" for name, value in ranked)
        yield f"From the start of the command to the first token of an answer: {times}."


def _memory(results: BenchmarkResults) -> Iterator[str]:
    peaks = {
        engine.name: max(known)
        for engine in results.engines
        if (known := [size for point in engine.points if (size := point.summary.conditions.memory_bytes) is not None])
    }
    if peaks:
        ranked = sorted(peaks.items(), key=lambda item: item[1])
        sizes = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in ranked)
        yield f"Peak memory of the server's processes: {sizes}."


def _doubts(results: BenchmarkResults) -> Iterator[str]:
    """Yield reasons to doubt figures or comparisons."""
    fewest = min((point.summary.num_succeeded for engine in results.engines for point in engine.points), default=0)
    if 0 < fewest < FEW_ANSWERS:
        yield f"Some loads have {fewest} answers: their 99th percentile is close to the maximum."
    for engine in results.engines:
        num_failed = sum(point.summary.num_requests - point.summary.num_succeeded for point in engine.points)
        if num_failed:
            error = next(error for point in engine.points for error in point.summary.errors)
            yield f"{engine.name} failed {num_failed} requests. The most frequent error: {error}."
    count, load_before = os.cpu_count() or 1, results.load_before
    if load_before > BUSY_SHARE * count:
        yield (
            f"This machine was busy before the benchmark (load {load_before:.1f} on {count} processors): engines that "
            "run on it are slower than on an idle machine."
        )
    for workload, load, points in results.groups():
        counts = {name: point.summary.prompt_tokens for name, point in points.items() if point.summary.prompt_tokens}
        if counts and max(counts.values()) > min(counts.values()) * EQUAL_RATIO:
            totals = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            yield (
                f"{workload}, {load}: the same prompts were counted differently ({totals} tokens): the engines had "
                "different work, or count it in another way."
            )
