"""Axes contain their values and end at round numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.report.scale import axis_scale, format_tick

pytestmark = pytest.mark.pure

numbers = st.floats(min_value=1e-3, max_value=1e6)


@given(st.lists(numbers, min_size=1, max_size=20), st.booleans())
def test_values_are_on_the_axis_in_order(values, is_log):
    axis = axis_scale(values, 56, 466, is_log)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert places[0] >= 56 - 1e-6 and places[-1] <= 466 + 1e-6
    assert 2 <= len(axis.ticks) <= 12


def test_a_linear_axis_begins_at_zero():
    assert axis_scale([40.0, 93.0], 0, 100).ticks == (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)


def test_a_logarithmic_axis_has_the_powers_of_ten():
    axis = axis_scale([0.5, 5000.0], 0, 100, is_log=True)
    assert [round(tick, 9) for tick in axis.ticks] == [0.1, 1, 10, 100, 1000, 10000]


def test_zero_alone_has_an_axis():
    axis = axis_scale([0.0], 300, 0)
    assert axis.at(0.0) == 300


@pytest.mark.parametrize("value, text", [(0.25, "0.25"), (200.0, "200"), (1500.0, "1.5k"), (2.5e6, "2.5M"), (0, "0")])
def test_ticks_are_short(value, text):
    assert format_tick(value) == text
