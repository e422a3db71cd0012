"""`quire bench speculate`: cells of pairs, and prompts that can be made again."""

from __future__ import annotations

import math
import random
from argparse import Namespace
from unittest.mock import ANY

import pytest

from quire.bench import speculate
from quire.bench.load.draft_loads import DRAFT_LOADS, NUM_RANDOM


@pytest.mark.pure
@pytest.mark.parametrize("name", DRAFT_LOADS)
def test_prompts_depend_on_the_seed_alone(name: str) -> None:
    load = DRAFT_LOADS[name]
    one, same, other = (load.prompt(random.Random(seed), 1000) for seed in (1, 1, 2))
    assert one == same != other
    if load.shared:
        assert one.startswith(load.shared)
    if name == "random":
        assert len(one) == NUM_RANDOM and max(one) < 1000


@pytest.mark.pure
def test_a_machine_that_gets_slower_does_not_widen_the_interval() -> None:
    slowing = [1.25, 0.8] * 8  # whichever of a pair ran second was slower, and the order alternates
    assert speculate.interval_of(slowing) == pytest.approx((1.0, 1.0, 1.0))
    assert speculate.interval_of([2.0, 2.0]) == pytest.approx((2.0, 0.0, float("inf")))


@pytest.mark.pure
def test_the_interval_is_that_of_wilcoxons_test() -> None:
    """Of 8 values, the critical sum of ranks is 3: the interval is from the 4th of the 36 means to the 4th last one."""
    values = [1.01, 1.04, 0.97, 1.10, 1.02, 0.99, 1.07, 1.05]
    logs = [math.log(value) for value in values]
    means = sorted((one + other) / 2 for at, one in enumerate(logs) for other in logs[at:])
    expected = (math.exp((means[17] + means[18]) / 2), math.exp(means[3]), math.exp(means[-4]))
    assert speculate.interval_of([value for value in values for _ in range(2)]) == pytest.approx(expected)


@pytest.mark.pure
def test_a_moment_of_other_work_hardly_moves_the_interval() -> None:
    values = [1.0 + 0.01 * (at % 5) for at in range(40)]
    one, other = ([each for each in (*values[:-1], last) for _ in range(2)] for last in (values[-1], 9.0))
    assert speculate.interval_of(one) == pytest.approx(speculate.interval_of(other), abs=0.005)


@pytest.mark.pure
def test_a_request_counts_as_much_as_another_that_ran_longer_with_it() -> None:
    off = speculate.Timing([(2.0, 1.0), (8.0, 6.0)], 8.0, 16.0)
    auto = speculate.Timing([(1.0, 0.25), (8.0, 6.0)], 8.0, 12.8)
    assert off.ratios(auto) == pytest.approx([math.sqrt(2), 2.0, 1.0, 1.25])


@pytest.mark.pure
def test_an_interval_that_begins_below_the_goal_is_marked() -> None:
    assert str(speculate.Interval(1.0, 0.981, 1.02)) == "1.000 (0.981 to 1.020)"
    assert str(speculate.Interval(1.0, 0.97, 1.02)) == "1.000 (0.970 to 1.020) *"


@pytest.mark.slow
@pytest.mark.e2e
def test_a_table_has_a_line_for_each_cell(model_file, capsys) -> None:
    rest = ["--loads", "code,json,replay", "--concurrency", "1,2", "--output-tokens", "12"]
    speculate.main(Namespace(model=str(model_file), quick=True, rest=rest))
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("") + 1 :]
    assert table[0].split()[:3] == ["load", "streams", "pairs"]
    cells = [line.split()[:2] for line in table[1:]]
    assert cells == [[load, count] for count in "12" for load in ("code", "json", "replay")]


@pytest.mark.slow
@pytest.mark.e2e
def test_for_the_noise_nothing_is_drafted(model_file, capsys) -> None:
    rest = ["--loads", "code", "--concurrency", "1", "--output-tokens", "12", "--noise"]
    speculate.main(Namespace(model=str(model_file), quick=True, rest=rest))
    assert capsys.readouterr().out.splitlines()[-1].split()[:6] == ["code", "1", "2", ANY, "0%", "0%"]


@pytest.mark.e2e
def test_a_server_is_measured_by_its_client(model_file, capsys) -> None:
    rest = ["--server", "--loads", "code,json,replay", "--concurrency", "2", "--output-tokens", "12"]
    speculate.main(Namespace(model=str(model_file), quick=True, rest=rest))
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert lines == [[load, "2", "4"] for load in ("code", "json", "replay")]


@pytest.mark.pure
def test_answers_of_one_token_have_no_time_after_their_first_and_are_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        speculate.main(Namespace(rest=["--output-tokens", "1"], quick=False, model=None))
    assert "at least 2" in capsys.readouterr().err
