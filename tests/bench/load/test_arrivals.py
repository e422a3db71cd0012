"""Arrival times follow their distribution."""

from __future__ import annotations

import math
import random
from itertools import islice, pairwise

import pytest

from quire.bench.load.arrivals import ArrivalProcess, parse_arrivals
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

COUNT, RATE = 4000, 5.0
CRITICAL = 1.36 / math.sqrt(COUNT)  # of the Kolmogorov–Smirnov statistic, at 5 %


def times(spec: str, rate: float = RATE, count: int = COUNT, seconds: float = 100.0, seed: int = 1) -> list[float]:
    return list(islice(parse_arrivals(spec).times(rate, seconds, random.Random(seed)), count))


def ks_statistic(values: list[float], cdf) -> float:
    """Return the Kolmogorov–Smirnov statistic: the largest distance of the empirical distribution from `cdf`."""
    ordered, count = sorted(values), len(values)
    above = max((place + 1) / count - cdf(value) for place, value in enumerate(ordered))
    below = max(cdf(value) - place / count for place, value in enumerate(ordered))
    return max(above, below)


@pytest.mark.parametrize("seed", range(3))
def test_poisson_arrivals_pass_a_kolmogorov_smirnov_test(seed):
    arrivals = times("poisson", seed=seed)
    gaps = [after - before for before, after in pairwise([0.0, *arrivals])]
    assert ks_statistic(gaps, lambda gap: 1 - math.exp(-RATE * gap)) < CRITICAL
    assert ks_statistic([time / arrivals[-1] for time in arrivals[:-1]], lambda share: share) < CRITICAL  # no trend


def test_the_statistic_tells_other_distributions_apart():
    for spec in ("constant", "gamma:0.5", "bursts:4"):
        gaps = [after - before for before, after in pairwise([0.0, *times(spec)])]
        assert ks_statistic(gaps, lambda gap: 1 - math.exp(-RATE * gap)) > 3 * CRITICAL


def test_gamma_of_shape_one_is_poisson():
    gaps = [after - before for before, after in pairwise([0.0, *times("gamma:1")])]
    assert ks_statistic(gaps, lambda gap: 1 - math.exp(-RATE * gap)) < CRITICAL


@pytest.mark.parametrize("spec", ["poisson", "constant", "gamma:0.4", "gamma:3", "bursts:8"])
def test_every_process_has_the_requested_rate(spec):
    arrivals = times(spec)
    assert arrivals == sorted(arrivals)
    assert COUNT / arrivals[-1] == pytest.approx(RATE, rel=0.08)


def test_bursts_come_at_once():
    arrivals = times("bursts:8", count=80)
    assert all(len(set(arrivals[begin : begin + 8])) == 1 for begin in range(0, 80, 8))


def test_a_ramp_grows_evenly_to_its_rate_and_stays_there():
    arrivals = times("ramp:1", rate=9.0, seconds=400.0)
    expected = lambda time: (time + (9 - 1) / 400 * time**2 / 2) if time < 400 else 2000 + 9 * (time - 400)  # noqa: E731
    last = expected(arrivals[-1])
    assert ks_statistic([expected(time) / last for time in arrivals], lambda share: share) < CRITICAL


def test_the_same_seed_makes_the_same_times():
    assert times("gamma:0.5", seed=7) == times("gamma:0.5", seed=7) != times("gamma:0.5", seed=8)


def test_the_expected_duration_follows_from_rate_and_count():
    assert ArrivalProcess().seconds_for(4.0, 100) == 25.0
    assert ArrivalProcess("ramp", 2.0).seconds_for(8.0, 100) == 20.0


@pytest.mark.parametrize("spec", ["", "uniform", "gamma", "gamma:0", "bursts:x", "ramp:-1", "poisson:3"])
def test_an_invalid_spec_is_refused(spec):
    with pytest.raises(InvalidRequest, match="poisson, constant, gamma:SHAPE"):
        parse_arrivals(spec)
