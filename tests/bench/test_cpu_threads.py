"""`quire bench cpu-threads` measures every variant of the kernels, without a model."""

from __future__ import annotations

from argparse import Namespace

import pytest

from quire.bench.cpu_threads import main
from quire.devices.cpu.bindings import native
from quire.devices.cpu.time_products import MANY_TOKENS, thread_counts, time_products
from tests.devices.cpu.programs import HAS_NATIVE

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]


def test_every_variant_has_a_line_for_every_format(capsys: pytest.CaptureFixture[str]):
    main(Namespace(rest=["--threads", "1", "--mb", "1", "--formats", "q4_k,bf16"]))
    printed = capsys.readouterr().out
    lines = [line.split()[:2] for line in printed.splitlines()]
    variants = [name for name in native().variants() if name != "baseline"] or ["baseline"]
    assert all([format, name] in lines for format in ("q4_k", "bf16") for name in variants)
    assert "1 threads: " in printed and "NUMA nodes: " in printed


def test_rates_are_of_all_multiply_adds_and_of_all_bytes():
    for times in time_products(1, ["q4_0"], 1 << 20):
        assert set(times.multiply_adds) == set(MANY_TOKENS)
        assert min(times.multiply_adds.values()) > 1e7 and min(times.read_bytes.values()) > 1e7


def test_all_threads_are_the_last_number():
    counts = thread_counts()
    assert list(counts) == sorted(set(counts)) and counts[0] == 1
