"""Figures of large models, and the arguments of their command."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.bench import cpu_large
from quire.bench.cpu_large import bandwidth_figures, unique_figure
from quire.devices.base import Peaks

pytestmark = pytest.mark.pure


def one_stream(read_bytes: float, peer: float | None) -> Any:
    peaks = Peaks(read_bytes=read_bytes, multiply_adds=1e12, num_threads=2, kernels="avx2")
    return SimpleNamespace(
        facts=SimpleNamespace(label="1B Q8_0", decode_bytes=1_000_000_000),
        ours=SimpleNamespace(decode_rates=(24.0, 27.0, 30.0), peaks=(peaks,) * 3),
        peer=None if peer is None else SimpleNamespace(decode=(peer,)),
    )


def test_the_share_of_the_bandwidth_is_a_median_with_a_goal():
    (figure,) = bandwidth_figures(one_stream(30e9, 15.0))
    assert (figure.value, figure.peer, figure.verdict) == (pytest.approx(90), pytest.approx(50), "reached")
    (figure,) = bandwidth_figures(one_stream(60e9, None))
    assert (figure.value, figure.verdict) == (pytest.approx(45), "MISSED")


def test_unique_streams_are_compared_with_the_peer():
    def streams(rate: float) -> Any:
        return SimpleNamespace(loads=SimpleNamespace(unique=SimpleNamespace(output_per_second=rate)))

    figure = unique_figure("1B Q4_K_M", streams(40.0), streams(10.0), 8)
    assert (figure.value, figure.peer, figure.verdict) == (40.0, 10.0, "reached")


def test_an_unknown_size_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cpu_large.main(Namespace(model="7B", rest=[], no_peer=True))
    assert "there is no size '7B': 1B, 3B" in capsys.readouterr().err


def test_files_are_deleted_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "large.1b.q8_0.gguf").write_bytes(b"x")
    monkeypatch.setattr(cpu_large, "home_folder", lambda _: tmp_path)
    cpu_large.main(Namespace(model="", rest=["--delete"], no_peer=True))
    assert capsys.readouterr().out == "0.0 GB deleted\n" and not list((tmp_path / "bench").iterdir())
