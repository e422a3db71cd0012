"""Plots as SVG to stand inside a page: curves, steps and bars.

Colours are classes (`s0`, `s1`, …) whose values the page's style has, so one plot serves light and dark. Every series
has a mark of its own shape too: nobody has to tell colours apart. What lies under the pointer is told by `<title>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import NewType

from quire.report.scale import Scale, scale, short

Html = NewType("Html", str)  # whatever may stand in a page as it is

WIDTH, HEIGHT = 480, 300  # small enough to be read on a phone, where it is scaled down least
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 14, 44
NUM_COLOURS = 6
MARK = 4.0  # half the width of a mark
CDF_POINTS = 200


@dataclass(frozen=True, slots=True)
class Axes:
    """What a plot shows."""

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its points in the order in which they are joined, and words beside them, one for each or none."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()


def distribution(name: str, values: Sequence[float]) -> Series:
    """The share of values that are at most so large: a series for `steps`."""
    ordered, count = sorted(values), len(values)
    picked = sorted({round(index * (count - 1) / (CDF_POINTS - 1)) for index in range(CDF_POINTS)}) if count else []
    return Series(name, tuple((ordered[index], (index + 1) / count) for index in picked))


def lines(axes: Axes, series: Sequence[Series]) -> Html:
    """Curves with a mark at every point."""
    return _plot(axes, series, _curve)


def steps(axes: Axes, series: Sequence[Series]) -> Html:
    """Curves that keep a value until the next point: distributions, and what is counted over time."""
    return _plot(axes, series, _stairs)


def bars(axes: Axes, groups: Mapping[str, Mapping[str, float]]) -> Html:
    """A group of bars for each name on the x axis; within it, one bar for each series, always in the same place."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    y = scale([value for group in groups.values() for value in group.values()] or [0.0], HEIGHT - BOTTOM, TOP)
    room = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    width = min(48.0, room * 0.8 / max(1, len(names)))
    drawn = [*_grid_y(y)]
    for place, (label, group) in enumerate(groups.items()):
        middle = LEFT + room * (place + 0.5)
        drawn.append(_text(middle, HEIGHT - BOTTOM + 16, label, "middle"))
        for index, name in enumerate(names):
            if name in group:
                left = middle + width * (index - len(names) / 2)
                drawn += _bar(y, left, width, group[name], f"{name}, {label}", index)
    return _svg(axes, drawn)


def _bar(y: Scale, left: float, width: float, value: float, name: str, index: int) -> Iterator[str]:
    top, bottom = min(y.at(value), y.at(0.0)), max(y.at(value), y.at(0.0))
    shape = f'x="{left + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" height="{bottom - top:.1f}" rx="2"'
    yield f'<rect class="fill {_colour(index)}" {shape}><title>{escape(name)}: {short(value)}</title></rect>'
    yield _text(left + width / 2, top - 4, short(value), "middle", "small")


def _plot(axes: Axes, series: Sequence[Series], draw: Callable[[Scale, Scale, Series, int], Iterator[str]]) -> Html:
    points = [point for each in series for point in each.points] or [(0.0, 0.0)]
    x = scale([point[0] for point in points], LEFT, WIDTH - RIGHT, axes.log_x)
    y = scale([point[1] for point in points], HEIGHT - BOTTOM, TOP, axes.log_y)
    drawn = [*_grid_y(y)]
    for tick in x.ticks:
        drawn.append(f'<path class="grid" d="M{x.at(tick):.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        drawn.append(_text(x.at(tick), HEIGHT - BOTTOM + 16, short(tick), "middle"))
    for index, each in enumerate(series):
        drawn += draw(x, y, each, index)
    return _svg(axes, drawn)


def _curve(x: Scale, y: Scale, series: Series, index: int) -> Iterator[str]:
    places = [(x.at(left), y.at(up)) for left, up in series.points]
    path = "L".join(f"{left:.1f} {up:.1f}" for left, up in places)
    if path:
        yield f'<path class="line {_colour(index)}" d="M{path}"/>'
    labels = series.labels or ("",) * len(places)
    for (left, up), (at_x, at_y), label in zip(places, series.points, labels, strict=True):
        told = ", ".join(filter(None, (series.name, label, f"{short(at_x)} / {short(at_y)}")))
        yield f'<path class="fill {_colour(index)}" d="{_mark(left, up, index)}"><title>{escape(told)}</title></path>'
        if label:
            yield _text(left, up - 8, label, "middle", "small")


def _stairs(x: Scale, y: Scale, series: Series, index: int) -> Iterator[str]:
    if not series.points:
        return
    first, *_ = series.points
    parts = [f"M{x.at(first[0]):.1f} {y.at(max(0.0, y.low)):.1f}V{y.at(first[1]):.1f}"]
    parts += [f"H{x.at(after[0]):.1f}V{y.at(after[1]):.1f}" for _, after in pairwise(series.points)]
    yield f'<path class="line {_colour(index)}" d="{"".join(parts)}"><title>{escape(series.name)}</title></path>'


def _mark(left: float, up: float, index: int) -> str:
    """A circle, a square, a diamond, a triangle; then again."""
    m = MARK
    return (
        f"M{left - m:.1f} {up:.1f}a{m} {m} 0 1 0 {2 * m} 0a{m} {m} 0 1 0 {-2 * m} 0z",
        f"M{left - m:.1f} {up - m:.1f}h{2 * m}v{2 * m}h{-2 * m}z",
        f"M{left:.1f} {up - 1.4 * m:.1f}l{1.4 * m} {1.4 * m}l{-1.4 * m} {1.4 * m}l{-1.4 * m} {-1.4 * m}z",
        f"M{left:.1f} {up - 1.2 * m:.1f}l{1.2 * m} {2.2 * m}h{-2.4 * m}z",
    )[index % 4]


def key(names: Sequence[str]) -> Html:
    """What belongs to which name: colours and marks, in the order of the series."""
    marks = (
        f'<svg viewBox="0 0 12 12"><path class="fill {_colour(index)}" d="{_mark(6, 6, index)}"/></svg>{escape(name)}'
        for index, name in enumerate(names)
    )
    return Html('<p class="key">' + "".join(f"<span>{mark}</span>" for mark in marks) + "</p>")


def _colour(index: int) -> str:
    return f"s{index % NUM_COLOURS}"


def _grid_y(y: Scale) -> Iterator[str]:
    for tick in y.ticks:
        yield f'<path class="grid" d="M{LEFT} {y.at(tick):.1f}H{WIDTH - RIGHT}"/>'
        yield _text(LEFT - 6, y.at(tick) + 4, short(tick), "end")


def _text(left: float, up: float, text: str, anchor: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{left:.1f}" y="{up:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(axes: Axes, drawn: Sequence[str]) -> Html:
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    named = (
        _text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, axes.x, "middle", "axis"),
        f'<text class="axis" transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(axes.y)}</text>",
    )
    inside = "".join((*drawn, *named))
    return Html(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(axes.title)}">{inside}</svg>')
