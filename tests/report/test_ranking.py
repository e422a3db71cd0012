"""The best and the second best."""

import pytest

from quire.report.ranking import TopTwo, top_two

pytestmark = pytest.mark.pure


def test_the_best_is_the_largest_or_the_smallest():
    values = {"a": 2.0, "b": 8.0, "c": 4.0}
    assert top_two(values, is_more_better=True) == TopTwo("b", "c", 2.0)
    assert top_two(values, is_more_better=False) == TopTwo("a", "c", 2.0)


def test_one_value_has_no_second_and_zero_has_no_ratio():
    assert top_two({"a": 3.0}, is_more_better=True) == TopTwo("a")
    assert top_two({"a": 0.0, "b": 3.0}, is_more_better=False) == TopTwo("a", "b", 1.0)
