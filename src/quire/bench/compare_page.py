"""The report of a comparison as a page: what it comes to, curves, distributions, tables, and how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quire.bench.drive import Closed, Load
from quire.bench.measure import Point
from quire.bench.outcome import Outcome, compared
from quire.bench.rows import BY_KEY, ROWS
from quire.bench.verdict import ALIKE, conclusion, times
from quire.bench.winners import HEADS, answer_line, winners
from quire.report import page
from quire.report.plot import Axes, Html, Series, bars, distribution, lines, steps

MILLI = 1e-3


def compare_page(outcome: Outcome, command: str) -> Html:
    """The whole page."""
    names = [result.name for result in outcome.results]
    parts = [
        page.paragraph(f"{' against '.join(names)}, {outcome.made[:10]}, {outcome.machine}.", "soft"),
        *_conclusion(outcome),
        *(part for workload in outcome.plan.workloads for part in _workload(outcome, workload)),
        *_engines(outcome),
        *_method(outcome, command),
    ]
    return page.document(f"{' and '.join(names)}: measured", parts)


def _conclusion(outcome: Outcome) -> Iterator[Html]:
    """One line, the table of winners, then sentences."""
    line, found = answer_line(outcome), winners(outcome)
    if not line:
        yield page.conclusion(conclusion(outcome))
        return
    yield page.conclusion([line])
    if found:
        yield page.table(HEADS, found)
    yield page.listing(conclusion(outcome))


def _workload(outcome: Outcome, workload: str) -> Iterator[Html]:
    groups = [(load, points) for name, load, points in outcome.groups() if name == workload]
    names = [result.name for result in outcome.results]
    yield page.heading(f"Workload {workload}")
    yield page.figures(_plots(outcome, workload, groups, names))
    for load, points in groups:
        yield page.heading(str(load), 3)
        heads, rows = compared(points)
        yield page.table(heads, rows, _best(rows, points))
        for name, point in points.items():
            if point.summary.errors:
                yield page.listing(f"{name}: {count} × {error}" for error, count in point.summary.errors.items())


def _plots(
    outcome: Outcome, workload: str, groups: list[tuple[Load, dict[str, Point]]], names: list[str]
) -> Iterator[Html]:
    if len(groups) > 1:
        for key, title in (("p50_ttft_ms", "first token, median ms"), ("p50_tpot_ms", "per token, median ms")):
            axes = Axes(f"output against {title}", title, "output, tok/s")
            series = [_curve(outcome, workload, name, key) for name in names]
            note = "Up and to the left is better; a mark is a load, " + (
                "with its number of clients." if isinstance(groups[0][0], Closed) else "with its rate."
            )
            yield page.figure(f"Throughput against {title}", lines(axes, series), note, names)
    load, points = groups[-1]
    for name, title in (("first_token", "time to the first token"), ("per_token", "time per token")):
        axes = Axes(title, f"{title}, ms", "share of answers", log_x=True)
        series = [distribution(engine, _milliseconds(points, engine, name)) for engine in names]
        yield page.figure(f"Distribution of the {title}", steps(axes, series), f"{load}. To the left is better.", names)
    gaps = [distribution(name, [gap / MILLI for gap in _gaps(points, name) if gap > 0]) for name in names]
    axes = Axes("gaps", "gap between two events of an answer, ms", "share of gaps", log_x=True)
    yield page.figure("Distribution of gaps", steps(axes, gaps), f"{load}. To the left is better.", names)
    shares = {str(load): {name: _output(points[name]) for name in names if name in points} for load, points in groups}
    axes = Axes("output", "", "output, tok/s")
    yield page.figure("Output tokens a second", bars(axes, shares), "Higher is better.", names)


def _curve(outcome: Outcome, workload: str, name: str, key: str) -> Series:
    (result,) = (each for each in outcome.results if each.name == name)
    points = [point for point in result.points if point.workload == workload and point.summary.num_good]
    places = tuple((float(BY_KEY[key].of(point.summary) or 0.0), _output(point)) for point in points)
    labels = tuple(_short(point.load) for point in points)
    return Series(name, places, labels)


def _short(load: Load) -> str:
    return str(load.num_clients) if isinstance(load, Closed) else str(load).split(" ", 1)[0]


def _output(point: Point) -> float:
    return point.summary.output_per_second


def _milliseconds(points: Mapping[str, Point], engine: str, name: str) -> list[float]:
    heard = points[engine].heard if engine in points else ()
    values = (getattr(each, name) for each in heard if each.is_good)
    return [value / MILLI for value in values if value]


def _gaps(points: Mapping[str, Point], engine: str) -> Iterator[float]:
    for heard in points[engine].heard if engine in points else ():
        yield from heard.gaps


def _best(rows: list[list[str]], points: Mapping[str, Point]) -> Iterator[tuple[int, int]]:
    """The cells that stand out: the best of each row, where there is a better and a worse."""
    by_label = {row.label: row for row in ROWS}
    for down, cells in enumerate(rows):
        row = by_label[cells[0]]
        values = [row.of(point.summary) for point in points.values()]
        known = [value for value in values if value is not None]
        if row.better and len(known) > 1 and times(max(known), min(known)) >= ALIKE:
            wanted = max(known) if row.better == "more" else min(known)
            yield down, 1 + values.index(wanted)


def _engines(outcome: Outcome) -> Iterator[Html]:
    yield page.heading("Engines")
    rows = []
    for each in outcome.results:
        seconds = "–" if each.start_seconds is None else f"{each.start_seconds:.2f} s"
        rows.append([each.name, each.model, seconds, each.what])
    yield page.table(["engine", "model", "start to first token", "address or command"], rows)
    notes = [f"{each.name}: {note}" for each in outcome.results for note in each.notes]
    if notes:
        yield page.listing(notes)


def _method(outcome: Outcome, command: str) -> Iterator[Html]:
    plan = outcome.plan
    many = f"{plan.until.num_requests} requests" if plan.until.num_requests else f"{plan.until.seconds:g} s"
    yield page.heading("How it was measured")
    yield page.listing(
        [
            f"Every engine got the same prompts in the same order, from the seed {plan.seed}; each load had {many} of "
            "its own, after a warm-up with others that is not counted.",
            "A time to the first token is from sending a request to the first event with a part of its answer; a time "
            "per token is the rest of the answer divided by its tokens less one, as the server counts them.",
            "Gaps are between events: a server that sends several tokens in one event has fewer and longer ones.",
            "Percentiles are interpolated linearly, as numpy does.",
        ]
    )
    rows, concerns = [], []
    for result in outcome.results:
        for point in result.points:
            delay, late = point.summary.around.own_delay, point.summary.lateness
            cells = [f"{each / MILLI:.2f} ms" for each in (delay.p50, delay.p99, delay.max, late.p99)]
            where = f"{result.name}, {point.workload}, {point.load}"
            rows.append([where, *cells, f"{point.summary.around.processor_share:.0%}"])
            concerns += [f"{where}: {concern}" for concern in point.summary.concerns]
    heads = ["own delay of the generator", "p50", "p99", "max", "requests late, p99", "of a core"]
    yield page.table(heads, rows)
    if concerns:
        yield page.details("What to keep in mind", [page.listing(concerns)])
    yield page.paragraph("The same again:", "soft")
    yield page.code(command)
