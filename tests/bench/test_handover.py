"""The benchmark of the tail of a handover: its table, and a run with two engines."""

from __future__ import annotations

import argparse

import pytest

from quire.bench.handover import HEAD, main, row
from tests.devices.cpu.programs import HAS_NATIVE


@pytest.mark.pure
def test_a_row_has_the_medians_of_prompts_and_tails():
    found = row("tcp", 2000, [(1.0, 0.01, 200), (1.2, 0.03, 180), (1.4, 0.02, 220)])
    assert found[:6] == ("tcp", "2,000", "3", "180 to 220", "1.20 s", "20.0 ms") and len(found) == len(HEAD)


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")
def test_the_command_hands_prompts_over_with_each_transport(capsys):
    main(argparse.Namespace(quick=True, model=""))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "ms" in line]
    assert [each[0] for each in rows] == ["| shared_memory", "| tcp"]
