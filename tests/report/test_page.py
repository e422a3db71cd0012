"""A report is well formed, says what it was given, and asks nobody for anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from quire.report import page
from quire.report.plot import Axes, Series, bars, distribution, lines, steps

pytestmark = pytest.mark.pure

AXES = Axes("speed", "clients & more", "tokens/s")
WICKED = '<script src="http://x/">'


class Nesting(HTMLParser):
    """Fails on a tag that is not closed where it should be."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def a_page() -> str:
    series = [Series("ours", ((1, 10), (8, 70)), ("1", "8")), Series(WICKED, ((1, 9), (8, 50)))]
    plot = lines(AXES, series)
    parts = [
        page.heading("Figures"),
        page.paragraph(WICKED),
        page.conclusion([WICKED]),
        page.listing([WICKED]),
        page.cards([("output", "70 tok/s", WICKED)]),
        page.table(["engine", "tok/s"], [[WICKED, "70"], ["other", "50"]], best=[(0, 1)]),
        page.figures([page.figure("speed", plot, "higher is better", ["ours", WICKED])]),
        page.details("how", [page.code(WICKED)]),
    ]
    return page.document("A report", parts)


def test_tags_are_closed_in_order():
    nesting = Nesting()
    nesting.feed(a_page())
    assert nesting.open == []
    assert {"svg", "table", "figure", "details", "style"} <= set(nesting.seen)


def test_what_users_named_cannot_become_markup():
    assert "<script" not in a_page()
    assert "&lt;script" in a_page()


def test_nothing_is_loaded():
    nesting = Nesting()
    nesting.feed(a_page())
    assert not {"link", "script", "img", "iframe"} & set(nesting.seen)
    assert not {"src", "href", "xlink:href", "srcset"} & nesting.attributes
    assert not re.search(r"url\(|@import", page.STYLE)


@pytest.mark.parametrize(
    "plot",
    [
        lines(AXES, [Series("a", ((1, 2), (3, 4)))]),
        lines(AXES, [Series("nothing", ())]),
        lines(Axes("t", "x", "y", log_x=True, log_y=True), [Series("a", ((0.001, 2), (300, 40000)))]),
        steps(AXES, [distribution("a", [3.0, 1.0, 2.0]), distribution("none", [])]),
        bars(AXES, {"p50": {"ours": 1.0, "other": 2.0}, "p99": {"other": 3.0}}),
        bars(AXES, {}),
    ],
    ids=["line", "empty", "logarithmic", "steps", "bars", "no bars"],
)
def test_plots_are_well_formed_and_finite(plot):
    root = ElementTree.fromstring(plot)
    assert root.get("aria-label")
    assert "nan" not in plot and "inf" not in plot


def test_a_distribution_ends_at_its_largest_value_with_all_of_them():
    values = [float(value) for value in range(1000)]
    points = distribution("a", values).points
    assert points[-1] == (999.0, 1.0)
    assert all(share == pytest.approx((value + 1) / 1000) for value, share in points)


def test_a_bar_is_as_long_as_its_value():
    root = ElementTree.fromstring(bars(AXES, {"a": {"x": 50.0}, "b": {"x": 100.0}}))
    heights = [float(rect.get("height", "")) for rect in root.iter("rect")]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
