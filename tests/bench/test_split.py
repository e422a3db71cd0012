"""The benchmark of the split: its table, and the shares of processors. `--quick` runs it with real servers."""

from __future__ import annotations

import os

import pytest

from quire.bench.split import HEAD, Load, LoadTimes, processors, table_rows

pytestmark = pytest.mark.pure


def test_a_load_has_a_row_for_each_source_of_prompts():
    times = LoadTimes([0.5, 0.7, 0.6], [0.02, 0.03], num_tokens=30, seconds=3.0)
    before = {"alone": (2.0, 1.0, 1.5)}
    after = {"alone": (4.0, 2.0, 3.5), "prefill": (1.0, 0.25, 0.5), "cache": (0.0, 0.0, 0.0)}
    first, second = table_rows(Load("prompt-heavy", 10, 10, 3), "prefill + decode", times, before, after)
    assert len(first) == len(second) == len(HEAD)
    assert first[:4] == ("prompt-heavy", "prefill + decode", "10.0", "0.600 s")
    assert first[-3:] == ("alone × 2", "0.50 s", "1.00 s") and second[-3:] == ("prefill × 1", "0.25 s", "0.50 s")
    assert set(second[:-3]) == {""}


def test_servers_get_equal_shares_of_the_processors():
    allowed = os.sched_getaffinity(0)
    shares = []
    for number in range(2):
        with processors(number, 2):
            shares.append(os.sched_getaffinity(0))
    assert os.sched_getaffinity(0) == allowed
    assert all(share and share <= allowed for share in shares)
    assert len(allowed) < 2 or not shares[0] & shares[1]
