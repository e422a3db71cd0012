"""Lengths follow their distribution."""

from __future__ import annotations

import random
import statistics

import pytest

from quire.bench.load.lengths import parse_lengths
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


def drawn(spec: str, count: int = 4000) -> list[int]:
    lengths, rng = parse_lengths(spec), random.Random(0)
    return [lengths.draw(rng) for _ in range(count)]


def test_a_number_is_a_constant_length():
    assert set(drawn("256")) == {256}


def test_uniform_has_both_ends():
    values = drawn("10-13")
    assert set(values) == {10, 11, 12, 13}


def test_log_normal_has_its_median_and_its_maximum():
    values = drawn("lognormal:200:0.8:1000")
    assert statistics.median(values) == pytest.approx(200, rel=0.05)
    assert max(values) == 1000 and min(values) >= 1
    assert statistics.mean(values) > 220  # its tail is long


def test_empirical_draws_the_listed_values(tmp_path):
    assert set(drawn("empirical:3/3/3/50")) == {3, 50}
    assert statistics.mean(value == 3 for value in drawn("empirical:3/3/3/50")) == pytest.approx(0.75, abs=0.03)
    file = tmp_path / "lengths.txt"
    file.write_text("7\n9\n")
    assert set(drawn(f"@{file}")) == {7, 9}


@pytest.mark.parametrize("spec", ["", "0", "-3", "9-3", "lognormal:5", "empirical:", "empirical:0/3", "@/none", "x"])
def test_an_invalid_spec_is_refused(spec):
    with pytest.raises(InvalidRequest, match="length"):
        parse_lengths(spec)
