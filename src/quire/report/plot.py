"""Plots as inline SVG: lines, steps and bars.

Colours are classes (`s0`, `s1`, …) defined by the page's style, so one plot works in both themes. Series also differ by
the shape of their marks, for readers who cannot tell colours apart. Values are shown as tooltips (`<title>`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NewType

from quire.report.scale import AxisScale, axis_scale, format_tick

Html = NewType("Html", str)  # escaped markup

WIDTH, HEIGHT = 480, 300  # small, so that text stays readable when a phone scales it down
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 44
NUM_COLOURS = 6
MARK_RADIUS = 4.0
CDF_POINTS = 200


@dataclass(frozen=True, slots=True)
class Axes:
    """The title of a plot and of its axes."""

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its points in order, and a label for each point or none at all."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()


Draw = Callable[[AxisScale, AxisScale, Series, int], Iterator[str]]  # x, y, series, its index -> SVG elements


def distribution(name: str, values: Sequence[float]) -> Series:
    """Return the cumulative distribution of values, for `step_plot`."""
    ordered, count = sorted(values), len(values)
    indices = sorted({round(index * (count - 1) / (CDF_POINTS - 1)) for index in range(CDF_POINTS)}) if count else []
    return Series(name, tuple((ordered[index], (index + 1) / count) for index in indices))


def line_plot(axes: Axes, series: Sequence[Series]) -> Html:
    """Plot curves with a mark at every point."""
    return _plot(axes, series, _line)


def step_plot(axes: Axes, series: Sequence[Series]) -> Html:
    """Plot curves that keep a value until the next point: distributions, and counts over time."""
    return _plot(axes, series, _steps)


def bar_plot(axes: Axes, groups: Mapping[str, Mapping[str, float]]) -> Html:
    """Plot a group of bars for each name on the x axis. A series has the same place in every group."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    y = axis_scale([value for group in groups.values() for value in group.values()] or [0.0], HEIGHT - BOTTOM, TOP)
    group_width = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    width = min(48.0, group_width * 0.8 / max(1, len(names)))
    drawn = [*_grid_y(y)]
    for place, (label, group) in enumerate(groups.items()):
        middle = LEFT + group_width * (place + 0.5)
        drawn.append(_text(middle, HEIGHT - BOTTOM + 16, label, "middle"))
        for index, name in enumerate(names):
            if name in group:
                left = middle + width * (index - len(names) / 2)
                drawn += _bar(y, left, width, group[name], f"{name}, {label}", index)
    return _svg(axes, drawn)


def _bar(y: AxisScale, left: float, width: float, value: float, name: str, index: int) -> Iterator[str]:
    top, bottom = min(y.at(value), y.at(0.0)), max(y.at(value), y.at(0.0))
    shape = f'x="{left + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" height="{bottom - top:.1f}" rx="2"'
    yield f'<rect class="fill {_colour(index)}" {shape}><title>{escape(name)}: {format_tick(value)}</title></rect>'
    yield _text(left + width / 2, top - 4, format_tick(value), "middle", "small")


def _plot(
    axes: Axes, series: Sequence[Series], draw: Callable[[AxisScale, AxisScale, Series, int], Iterator[str]]
) -> Html:
    points = [point for each in series for point in each.points] or [(0.0, 0.0)]
    x = axis_scale([point[0] for point in points], LEFT, WIDTH - RIGHT, axes.log_x)
    y = axis_scale([point[1] for point in points], HEIGHT - BOTTOM, TOP, axes.log_y)
    drawn = [*_grid_y(y)]
    for tick in x.ticks:
        drawn.append(f'<path class="grid" d="M{x.at(tick):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        drawn.append(_text(x.at(tick), HEIGHT - BOTTOM + 16, format_tick(tick), "middle"))
    for index, each in enumerate(series):
        drawn += draw(x, y, each, index)
    return _svg(axes, drawn)


def _line(x: AxisScale, y: AxisScale, series: Series, index: int) -> Iterator[str]:
    places = [(x.at(left), y.at(up)) for left, up in series.points]
    path = "L".join(f"{left:.1f} {up:.1f}" for left, up in places)
    if path:
        yield f'<path class="line {_colour(index)}" d="M{path}"/>'
    labels = series.labels or ("",) * len(places)
    for (left, up), (at_x, at_y), label in zip(places, series.points, labels, strict=True):
        tooltip = ", ".join(filter(None, (series.name, label, f"{format_tick(at_x)} / {format_tick(at_y)}")))
        mark = f'class="fill {_colour(index)}" d="{_mark(left, up, index)}"'
        yield f"<path {mark}><title>{escape(tooltip)}</title></path>"
        if label:
            yield _text(left, up - 8, label, "middle", "small")


def _steps(x: AxisScale, y: AxisScale, series: Series, index: int) -> Iterator[str]:
    if not series.points:
        return
    first, *_ = series.points
    parts = [f"M{x.at(first[0]):.1f} {y.at(max(0.0, y.low)):.1f}V{y.at(first[1]):.1f}"]
    parts += [f"H{x.at(after[0]):.1f}V{y.at(after[1]):.1f}" for _, after in pairwise(series.points)]
    yield f'<path class="line {_colour(index)}" d="{"".join(parts)}"><title>{escape(series.name)}</title></path>'


def _mark(left: float, up: float, index: int) -> str:
    """Return the path of a mark: circle, square, diamond or triangle, repeating."""
    m = MARK_RADIUS
    return (
        f"M{left - m:.1f} {up:.1f}a{m} {m} 0 1 0 {2 * m} 0a{m} {m} 0 1 0 {-2 * m} 0z",
        f"M{left - m:.1f} {up - m:.1f}h{2 * m}v{2 * m}h{-2 * m}z",
        f"M{left:.1f} {up - 1.4 * m:.1f}l{1.4 * m} {1.4 * m}l{-1.4 * m} {1.4 * m}l{-1.4 * m} {-1.4 * m}z",
        f"M{left:.1f} {up - 1.2 * m:.1f}l{1.2 * m} {2.2 * m}h{-2.4 * m}z",
    )[index % 4]


def legend(names: Sequence[str]) -> Html:
    """Return the names with the colours and marks of their series, in order."""
    marks = (
        f'<svg viewBox="0 0 12 12"><path class="fill {_colour(index)}" d="{_mark(6, 6, index)}"/></svg>{escape(name)}'
        for index, name in enumerate(names)
    )
    return Html('<p class="key">' + "".join(f"<span>{mark}</span>" for mark in marks) + "</p>")


def _colour(index: int) -> str:
    return f"s{index % NUM_COLOURS}"


def _grid_y(y: AxisScale) -> Iterator[str]:
    for tick in y.ticks:
        yield f'<path class="grid" d="M{LEFT} {y.at(tick):.1f}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 6, y.at(tick) + 4, format_tick(tick), "end")


def _text(left: float, up: float, text: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{left:.1f}" y="{up:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(axes: Axes, drawn: Sequence[str]) -> Html:
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    titles = (
        _text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, axes.x, "middle", "axis"),
        f'<text class="axis" transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(axes.y)}</text>",
    )
    inside = "".join((*drawn, *titles))
    return Html(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(axes.title)}">{inside}</svg>')
