"""Requests arrive as their distribution says."""

from __future__ import annotations

import math
import random
from itertools import islice, pairwise

import pytest

from quire.bench.arrivals import Arrivals, parse_arrivals
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

COUNT, RATE = 4000, 5.0
CRITICAL = 1.36 / math.sqrt(COUNT)  # of the Kolmogorov–Smirnov statistic, at 5 %


def times(spelled: str, rate: float = RATE, count: int = COUNT, seconds: float = 100.0, seed: int = 1) -> list[float]:
    return list(islice(parse_arrivals(spelled).times(rate, seconds, random.Random(seed)), count))


def farthest(values: list[float], cdf) -> float:
    """The Kolmogorov–Smirnov statistic: how far the measured distribution is from the wanted one."""
    ordered, count = sorted(values), len(values)
    above = max((place + 1) / count - cdf(value) for place, value in enumerate(ordered))
    below = max(cdf(value) - place / count for place, value in enumerate(ordered))
    return max(above, below)


@pytest.mark.parametrize("seed", range(3))
def test_poisson_arrivals_pass_a_kolmogorov_smirnov_test(seed):
    came = times("poisson", seed=seed)
    gaps = [after - before for before, after in pairwise([0.0, *came])]
    assert farthest(gaps, lambda gap: 1 - math.exp(-RATE * gap)) < CRITICAL
    assert farthest([time / came[-1] for time in came[:-1]], lambda share: share) < CRITICAL  # no trend


def test_the_statistic_tells_other_distributions_apart():
    for spelled in ("constant", "gamma:0.5", "bursts:4"):
        gaps = [after - before for before, after in pairwise([0.0, *times(spelled)])]
        assert farthest(gaps, lambda gap: 1 - math.exp(-RATE * gap)) > 3 * CRITICAL


def test_gamma_of_shape_one_is_poisson():
    gaps = [after - before for before, after in pairwise([0.0, *times("gamma:1")])]
    assert farthest(gaps, lambda gap: 1 - math.exp(-RATE * gap)) < CRITICAL


@pytest.mark.parametrize("spelled", ["poisson", "constant", "gamma:0.4", "gamma:3", "bursts:8"])
def test_all_of_them_have_the_rate_that_was_asked_for(spelled):
    came = times(spelled)
    assert came == sorted(came)
    assert COUNT / came[-1] == pytest.approx(RATE, rel=0.08)


def test_bursts_come_at_once():
    came = times("bursts:8", count=80)
    assert all(len(set(came[begin : begin + 8])) == 1 for begin in range(0, 80, 8))


def test_a_ramp_grows_evenly_to_its_rate_and_stays_there():
    came = times("ramp:1", rate=9.0, seconds=400.0)
    expected = lambda time: (time + (9 - 1) / 400 * time**2 / 2) if time < 400 else 2000 + 9 * (time - 400)  # noqa: E731
    last = expected(came[-1])
    assert farthest([expected(time) / last for time in came], lambda share: share) < CRITICAL


def test_the_same_seed_makes_the_same_times():
    assert times("gamma:0.5", seed=7) == times("gamma:0.5", seed=7) != times("gamma:0.5", seed=8)


def test_how_long_requests_take_to_arrive_is_known():
    assert Arrivals().seconds_for(4.0, 100) == 25.0
    assert Arrivals("ramp", 2.0).seconds_for(8.0, 100) == 20.0


@pytest.mark.parametrize("spelled", ["", "uniform", "gamma", "gamma:0", "bursts:x", "ramp:-1", "poisson:3"])
def test_what_is_no_way_to_arrive_is_refused(spelled):
    with pytest.raises(InvalidRequest, match="poisson, constant, gamma:SHAPE"):
        parse_arrivals(spelled)
