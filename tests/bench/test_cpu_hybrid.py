"""Figures of models with states: ratios to the peer's for one stream and for streams with a shared prefix."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from quire.bench import cpu_hybrid
from quire.bench.cpu_hybrid import FILES, many_streams_figures

pytestmark = pytest.mark.pure


def streams(unique: float, shared: float) -> Any:
    rates = {"unique": unique, "shared": shared}
    return SimpleNamespace(
        loads=SimpleNamespace(**{name: SimpleNamespace(output_per_second=rate) for name, rate in rates.items()})
    )


def test_a_shared_prefix_has_a_goal_that_is_a_ratio_to_the_peer():
    unique, shared = many_streams_figures("lfm2 q4_0", streams(90.0, 300.0), streams(40.0, 40.0), 32)
    assert (unique.value, unique.peer, unique.verdict) == (90.0, 40.0, "")
    assert (shared.value, shared.peer, shared.verdict) == (300.0, 40.0, "reached")
    assert "32 streams" in shared.name and "lfm2 q4_0" in shared.name


def test_without_a_peer_nothing_is_compared():
    _, shared = many_streams_figures("qwen35 q8_0", streams(90.0, 300.0), None, 8)
    assert shared.verdict == "not compared"


def test_an_unknown_file_is_refused_with_the_known_ones():
    assert FILES == ("lfm2.q4_0", "lfm2.q8_0", "qwen35.q4_0", "qwen35.q8_0")
    with pytest.raises(SystemExit, match=r"no model 'lfm2'\. There are: lfm2\.q4_0, "):
        cpu_hybrid.main(Namespace(model="lfm2", quick=True, no_peer=True))
