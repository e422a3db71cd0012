"""A function in a child process: its result, its peak memory and its failure come back."""

import os

import pytest

from quire.bench.accuracy.cpu_accuracy import Divergence
from quire.bench.engines.child_process import ChildFailed, run_in_child
from quire.bench.machine.processes import peak_bytes
from tests.bench.engines.child_functions import echo, fail, repeat

pytestmark = pytest.mark.pure


@pytest.mark.skipif(peak_bytes() is None, reason="the system does not report a process's memory")
def test_the_peak_memory_is_the_childs():
    ballast = bytearray(b"1") * (300 << 20)
    in_function, of_child = run_in_child(peak_bytes, int, None)
    of_parent, _ = run_in_child(peak_bytes, int, os.getpid())
    assert in_function <= of_child < len(ballast) < of_parent


def test_dataclasses_are_passed_both_ways():
    (value, weight), _ = run_in_child(echo, tuple[Divergence, float], Divergence(0.5, 0.25), 2.0)
    assert (value, weight) == (Divergence(0.5, 0.25), 2.0)


def test_a_coroutine_function_is_run():
    assert run_in_child(repeat, list[int], 3)[0] == [3, 3, 3]


def test_a_failure_names_the_function(capfd):
    with pytest.raises(ChildFailed, match=r"engines\.child_functions\.fail ended with exit status 1"):
        run_in_child(fail, int)
    assert "expected failure" in capfd.readouterr().err
