"""Axes hold what they show and end at numbers that people like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.report.scale import scale, short

pytestmark = pytest.mark.pure

numbers = st.floats(min_value=1e-3, max_value=1e6)


@given(st.lists(numbers, min_size=1, max_size=20), st.booleans())
def test_every_value_lies_on_its_axis_and_in_order(values, is_log):
    axis = scale(values, 56, 466, is_log)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert places[0] >= 56 - 1e-6 and places[-1] <= 466 + 1e-6
    assert 2 <= len(axis.ticks) <= 12


def test_a_straight_axis_begins_at_zero():
    assert scale([40.0, 93.0], 0, 100).ticks == (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)


def test_a_logarithmic_axis_has_the_powers_of_ten():
    axis = scale([0.5, 5000.0], 0, 100, is_log=True)
    assert [round(tick, 9) for tick in axis.ticks] == [0.1, 1, 10, 100, 1000, 10000]


def test_nothing_but_zero_has_an_axis_too():
    axis = scale([0.0], 300, 0)
    assert axis.at(0.0) == 300


@pytest.mark.parametrize("value, text", [(0.25, "0.25"), (200.0, "200"), (1500.0, "1.5k"), (2.5e6, "2.5M"), (0, "0")])
def test_ticks_are_short(value, text):
    assert short(value) == text
