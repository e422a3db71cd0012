"""Single ops: each runs at each of its sizes, and its rates follow from its time."""

from __future__ import annotations

import pytest

from quire.bench import kernels
from quire.devices import base

pytestmark = pytest.mark.device

PEAKS = base.Peaks(read_bytes=10e9, multiply_adds=100e9, num_threads=2, kernels="avx2")


@pytest.mark.parametrize("op", list(kernels.op_benchmarks()), ids=lambda op: op.name)
def test_every_op_is_measured_at_each_of_its_sizes(op):
    times = list(kernels.measure_op(base.open("cpu"), op, seconds=0.001))
    assert [each.num_tokens for each in times] == list(op.tokens)
    assert all(each.seconds > 0 for each in times)


def test_rates_follow_from_sizes_and_time():
    linear = next(op for op in kernels.op_benchmarks() if op.name.endswith("q8_0"))
    timed = kernels.OpTime(linear, 16, seconds=1e-3)
    weights = kernels.DIM * kernels.DIM
    assert timed.read_bytes == pytest.approx(weights * 34 / 32 * 1e3)
    assert timed.products == pytest.approx(weights * 16 * 1e3)
    name, tokens, micros, *_ = kernels._row(timed, PEAKS)
    assert (name, tokens, micros) == (linear.name, "16", "1,000")
    assert kernels._row(timed, PEAKS)[-1] == f"{weights * 16 * 1e3 / 100e9:.0%}"
    assert kernels._row(timed, None)[4] == ""
