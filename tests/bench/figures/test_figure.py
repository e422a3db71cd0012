"""Figures: ratio, goal and the Markdown table."""

import pytest

from quire.bench.figures.figure import BEST, Figure, at_least, at_least_times, at_most, at_most_times
from quire.bench.figures.table import figure_table, format_number

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    "value, peer, goal, verdict",
    [
        (1.0, None, at_most(2), "reached"),
        (2.0, None, at_most(2), "reached"),
        (3.0, None, at_most(2), "MISSED"),
        (3.0, 1.0, at_most(2), "MISSED"),
        (80.0, None, at_least(70), "reached"),
        (60.0, 1.0, at_least(70), "MISSED"),
        (400.0, 100.0, at_least_times(4, "one"), "reached"),
        (399.0, 100.0, at_least_times(4, "one"), "MISSED"),
        (1.0, 3.1, at_most_times(1 / 3, "one"), "reached"),
        (1.0, 2.9, at_most_times(1 / 3, "one"), "MISSED"),
        (400.0, None, at_least_times(4, "one"), "not compared"),
        (1.0, 1.0, None, ""),
    ],
)
def test_a_goal_judges_the_figure_or_its_ratio(value, peer, goal, verdict):
    assert Figure("f", value, "s", goal, peers={} if peer is None else {"one": peer}).verdict == verdict


PEERS = {"one": 2.0, "two": 3.0}


@pytest.mark.parametrize(
    "goal, peers, ratio",
    [
        (None, {}, None),
        (None, {"one": 2.0}, 3.0),
        (None, {"one": 0.0}, None),
        (None, PEERS, None),  # of which one is not clear
        (at_least(1), PEERS, None),
        (at_least_times(1, "two"), PEERS, 2.0),
        (at_least_times(1, "three"), PEERS, None),
        (at_least_times(1, BEST), PEERS, 2.0),
        (at_most_times(1, BEST), PEERS, 3.0),
        (at_most_times(1, BEST), {}, None),
    ],
)
def test_the_ratio_is_to_the_peer_of_the_goal(goal, peers, ratio):
    assert Figure("f", 6.0, "tok/s", goal, peers=peers).ratio == ratio


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (0.00312, "0.00312"),
        (1.4e-06, "1.4e-06"),
        (0.5, "0.5"),
        (12.345, "12.3"),
        (999.4, "999"),
        (1023, "1,023"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert format_number(value) == text


def test_a_table_has_a_row_for_each_figure():
    figures = [
        Figure("prompt", 1023.0, "tok/s", at_least_times(4, "one"), "same file", {"one": 224.0, "two": 1000.0}),
        Figure("memory", 416.0, "MB", at_most(600)),
    ]
    head, rule, first, second = figure_table(figures).splitlines()
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["", "Quire", "one", "two", "ratio", "goal", "", ""]
    assert set(rule) == {"|", "-"} and len({len(line) for line in (head, rule, first, second)}) == 1
    assert [cell.strip() for cell in first.split("|")[1:-1]] == [
        *("prompt", "1,023 tok/s", "224 tok/s", "1,000 tok/s", "4.57", "≥ 4 × one", "reached", "same file"),
    ]
    cells = [cell.strip() for cell in second.split("|")[1:-1]]
    assert cells == ["memory", "416 MB", "", "", "", "≤ 600", "reached", ""]


def test_empty_columns_are_left_out():
    assert figure_table([Figure("f", 1.0, "s")]).splitlines()[0] == "|   | Quire |"
