"""A page is well formed, escapes its text and loads nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from quire.report import page
from quire.report.plot import Axes, Series, bar_plot, distribution, line_plot, step_plot

pytestmark = pytest.mark.pure

AXES = Axes("speed", "clients & more", "tokens/s")
MARKUP = '<script src="http://x/">'


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


def example_page() -> str:
    series = [Series("ours", ((1, 10), (8, 70)), ("1", "8")), Series(MARKUP, ((1, 9), (8, 50)))]
    plot = line_plot(AXES, series)
    parts = [
        page.heading("Figures"),
        page.paragraph(MARKUP),
        page.conclusion([MARKUP]),
        page.listing([MARKUP]),
        page.cards([("output", "70 tok/s", MARKUP)]),
        page.table(["engine", "tok/s"], [[MARKUP, "70"], ["other", "50"]], best=[(0, 1)]),
        page.figure_grid([page.figure("speed", plot, "higher is better", ["ours", MARKUP])]),
        page.details("how", [page.code(MARKUP)]),
    ]
    return page.document("A report", parts)


def test_tags_are_closed_in_order():
    nesting = Nesting()
    nesting.feed(example_page())
    assert nesting.open == []
    assert {"svg", "table", "figure", "details", "style"} <= set(nesting.seen)


def test_text_is_escaped():
    assert "<script" not in example_page()
    assert "&lt;script" in example_page()


def test_nothing_is_loaded():
    nesting = Nesting()
    nesting.feed(example_page())
    assert not {"link", "script", "img", "iframe"} & set(nesting.seen)
    assert not {"src", "href", "xlink:href", "srcset"} & nesting.attributes
    assert not re.search(r"url\(|@import", page.STYLE)


@pytest.mark.parametrize(
    "plot",
    [
        line_plot(AXES, [Series("a", ((1, 2), (3, 4)))]),
        line_plot(AXES, [Series("nothing", ())]),
        line_plot(Axes("t", "x", "y", log_x=True, log_y=True), [Series("a", ((0.001, 2), (300, 40000)))]),
        step_plot(AXES, [distribution("a", [3.0, 1.0, 2.0]), distribution("none", [])]),
        bar_plot(AXES, {"p50": {"ours": 1.0, "other": 2.0}, "p99": {"other": 3.0}}),
        bar_plot(AXES, {}),
    ],
    ids=["line", "empty", "logarithmic", "steps", "bars", "no bars"],
)
def test_plots_are_well_formed_and_finite(plot):
    root = ElementTree.fromstring(plot)
    assert root.get("aria-label")
    assert "nan" not in plot and "inf" not in plot


def test_a_distribution_ends_at_its_largest_value_and_share_one():
    values = [float(value) for value in range(1000)]
    points = distribution("a", values).points
    assert points[-1] == (999.0, 1.0)
    assert all(share == pytest.approx((value + 1) / 1000) for value, share in points)


def test_the_height_of_a_bar_is_proportional_to_its_value():
    root = ElementTree.fromstring(bar_plot(AXES, {"a": {"x": 50.0}, "b": {"x": 100.0}}))
    heights = [float(rect.get("height", "")) for rect in root.iter("rect")]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)
