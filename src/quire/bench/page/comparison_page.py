"""The report of a benchmark as an HTML page: conclusion, curves, distributions, tables and method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quire.bench.figures.conclusion import EQUAL_RATIO, conclude, ratio_of_larger
from quire.bench.figures.load_metrics import LOAD_METRICS, METRIC_BY_KEY
from quire.bench.figures.results import BenchmarkResults, PointsByEngine, comparison_table
from quire.bench.figures.winners import WINNER_HEADS, metric_winners, winner_sentence
from quire.bench.load.load_test import Point
from quire.bench.load.patterns import ClosedLoop, LoadPattern, StopAfter
from quire.report import page
from quire.report.plot import Axes, Html, Series, bar_plot, distribution, line_plot, step_plot

MILLI = 1e-3


def comparison_page(results: BenchmarkResults, command: str) -> Html:
    """Return the whole page. `command` is printed at its end."""
    names = [engine.name for engine in results.engines]
    parts = [
        page.paragraph(f"{' against '.join(names)}, {results.date[:10]}, {results.machine}.", "soft"),
        *_conclusion(results),
        *(part for workload in results.plan.workloads for part in _workload(results, workload)),
        *_engines(results),
        *_method(results, command),
    ]
    return page.document(f"{' and '.join(names)}: measured", parts)


def _conclusion(results: BenchmarkResults) -> Iterator[Html]:
    sentence, winners = winner_sentence(results), metric_winners(results)
    if not sentence:
        yield page.conclusion(conclude(results))
        return
    yield page.conclusion([sentence])
    if winners:
        yield page.table(WINNER_HEADS, winners)
    yield page.listing(conclude(results))


def _workload(results: BenchmarkResults, workload: str) -> Iterator[Html]:
    groups = [(load, points) for name, load, points in results.groups() if name == workload]
    yield page.heading(f"Workload {workload}")
    yield page.figure_grid(_plots(results, workload, groups))
    for load, points in groups:
        yield page.heading(str(load), 3)
        heads, rows = comparison_table(points)
        yield page.table(heads, rows, _best_cells(rows, points))
        for name, point in points.items():
            if point.summary.errors:
                yield page.listing(f"{name}: {count} × {error}" for error, count in point.summary.errors.items())


def _plots(
    results: BenchmarkResults, workload: str, groups: list[tuple[LoadPattern, PointsByEngine]]
) -> Iterator[Html]:
    names = [engine.name for engine in results.engines]
    if len(groups) > 1:
        for key, title in (("p50_ttft_ms", "first token, median ms"), ("p50_tpot_ms", "per token, median ms")):
            axes = Axes(f"output against {title}", title, "output, tok/s")
            series = [_curve(results, workload, name, key) for name in names]
            label = "number of clients" if isinstance(groups[0][0], ClosedLoop) else "rate"
            note = f"Up and to the left is better; each mark is a load, labelled with its {label}."
            yield page.figure(f"Throughput against {title}", line_plot(axes, series), note, names)
    load, points = groups[-1]
    note = f"{load}. To the left is better."
    for name, title in (("first_token", "time to the first token"), ("per_token", "time per token")):
        axes = Axes(title, f"{title}, ms", "share of answers", log_x=True)
        series = [distribution(engine, _milliseconds(points, engine, name)) for engine in names]
        yield page.figure(f"Distribution of the {title}", step_plot(axes, series), note, names)
    gaps = [distribution(name, [gap / MILLI for gap in _gaps(points, name) if gap > 0]) for name in names]
    axes = Axes("gaps", "gap between two events of an answer, ms", "share of gaps", log_x=True)
    yield page.figure("Distribution of gaps", step_plot(axes, gaps), note, names)
    outputs = {str(load): {name: _output(points[name]) for name in names if name in points} for load, points in groups}
    axes = Axes("output", "", "output, tok/s")
    yield page.figure("Output tokens a second", bar_plot(axes, outputs), "Higher is better.", names)


def _curve(results: BenchmarkResults, workload: str, name: str, key: str) -> Series:
    (engine,) = (each for each in results.engines if each.name == name)
    points = [point for point in engine.points if point.workload == workload and point.summary.num_succeeded]
    places = tuple((float(METRIC_BY_KEY[key].value(point.summary) or 0.0), _output(point)) for point in points)
    return Series(name, places, tuple(_short_label(point.load) for point in points))


def _short_label(load: LoadPattern) -> str:
    return str(load.num_clients) if isinstance(load, ClosedLoop) else str(load).split(" ", 1)[0]


def _output(point: Point) -> float:
    return point.summary.output_per_second


def _milliseconds(points: Mapping[str, Point], engine: str, name: str) -> list[float]:
    results = points[engine].results if engine in points else ()
    values = (getattr(result, name) for result in results if result.is_success)
    return [value / MILLI for value in values if value]


def _gaps(points: Mapping[str, Point], engine: str) -> Iterator[float]:
    for result in points[engine].results if engine in points else ():
        yield from result.gaps


def _best_cells(rows: list[list[str]], points: Mapping[str, Point]) -> Iterator[tuple[int, int]]:
    """Yield the cells to emphasize: the best of each row, unless the values are equal or have no better."""
    by_label = {metric.label: metric for metric in LOAD_METRICS}
    for row, cells in enumerate(rows):
        metric = by_label[cells[0]]
        values = [metric.value(point.summary) for point in points.values()]
        known = [value for value in values if value is not None]
        if metric.better and len(known) > 1 and ratio_of_larger(max(known), min(known)) >= EQUAL_RATIO:
            best = max(known) if metric.better == "more" else min(known)
            yield row, 1 + values.index(best)


def _engines(results: BenchmarkResults) -> Iterator[Html]:
    yield page.heading("Engines")
    rows = []
    for engine in results.engines:
        seconds = "–" if engine.start_seconds is None else f"{engine.start_seconds:.2f} s"
        rows.append([engine.name, engine.model, seconds, engine.source])
    yield page.table(["engine", "model", "start to first token", "address or command"], rows)
    notes = [f"{engine.name}: {note}" for engine in results.engines for note in engine.notes]
    if notes:
        yield page.listing(notes)


def _duration(stop: StopAfter) -> str:
    if stop.num_requests:
        return f"{stop.num_requests} requests"
    return f"{stop.seconds:g} s" if stop.seconds else "the whole trace"


def _method(results: BenchmarkResults, command: str) -> Iterator[Html]:
    plan = results.plan
    yield page.heading("How it was measured")
    yield page.listing(
        [
            f"Every engine got the same prompts in the same order, from the seed {plan.seed}. Each load ran for "
            f"{_duration(plan.stop)} with its own prompts, after a warm-up with other prompts that is not counted.",
            "The time to the first token is from sending a request to the first event with output; the time per token "
            "is the rest of the answer divided by its number of tokens less one, as the server counts them.",
            "Gaps are between events: a server that sends several tokens in one event has fewer and longer gaps.",
            "Percentiles are interpolated linearly, as numpy does.",
        ]
    )
    rows, concerns = [], []
    for engine in results.engines:
        for point in engine.points:
            delay, lateness = point.summary.conditions.generator_delay, point.summary.lateness
            cells = [f"{each / MILLI:.2f} ms" for each in (delay.p50, delay.p99, delay.max, lateness.p99)]
            title = f"{engine.name}, {point.workload}, {point.load}"
            rows.append([title, *cells, f"{point.summary.conditions.processor_share:.0%}"])
            concerns += [f"{title}: {concern}" for concern in point.summary.concerns]
    yield page.table(["delay of the load generator", "p50", "p99", "max", "requests late, p99", "of a core"], rows)
    if concerns:
        yield page.details("Reasons to doubt these figures", [page.listing(concerns)])
    yield page.paragraph("To repeat the measurement:", "soft")
    yield page.code(command)
