"""`quire bench speculate`: cells of pairs, and prompts that can be made again."""

from __future__ import annotations

import random
from argparse import Namespace

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
    middle, low, high = speculate.interval_of([1.0, 1.0, 1.21, 1.21, 1.1, 1.1])
    assert middle == pytest.approx(1.1) and low < 0.9 and high > 1.3  # three values: t is 4.3
    assert speculate.interval_of([2.0, 2.0]) == pytest.approx((2.0, 0.0, float("inf")))


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
