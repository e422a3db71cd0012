"""The benchmark of gateways before real servers: its table, and a small run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from quire.bench.__main__ import main
from quire.bench.fleet.gateway_load import HEAD, WORKLOADS, PolicyRun, run_row
from quire.bench.load.request_result import RequestResult
from quire.bench.load.workload_spec import parse_workload


@pytest.mark.pure
def test_every_workload_can_be_parsed():
    assert {"chat", "rag", "agent", "shared"} == set(WORKLOADS)
    assert all(parse_workload(spec) for spec in WORKLOADS.values())


@pytest.mark.pure
def test_a_row_compares_with_one_server_and_counts_failures():
    answers = [RequestResult(0.0, sent=1.0, event_times=[1.0 + 0.01 * n]) for n in range(1, 101)]
    single = PolicyRun("one", 0.8, 1000, answers, 2.0)
    run = PolicyRun("other", 0.6, 5000, [*answers, RequestResult(0.0, error="refused")], 3.0)
    assert run_row(run, single) == ["other, 1 failed", "60.0%", "75.0%", "510 ms", "1,000 ms", "5,000", "3.0"]
    assert len(run_row(run, single)) == len(HEAD)
    assert math.isnan(PolicyRun("none", 0.0, 0, [], 1.0).first_token(0.5))


@pytest.mark.e2e
@pytest.mark.slow
def test_a_small_run_answers_every_request(model_file: Path, capsys: pytest.CaptureFixture[str]):
    main(["gateway-load", str(model_file), "--quick", "--balance", "cache", "--replicas", "2"])
    printed = capsys.readouterr().out
    assert "| one server, summed cache |" in printed and "| quire gateway, cache |" in printed
    assert "failed" not in printed
