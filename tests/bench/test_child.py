"""A part of the benchmark in a process of its own: its answer and its memory come back, its failure too."""

import os

import pytest

from quire.bench.accuracy import Divergence
from quire.bench.child import PartFailed, peak_bytes, run_part
from tests.bench.parts import echo, fails, repeated

pytestmark = pytest.mark.pure


@pytest.mark.skipif(peak_bytes() is None, reason="the system does not tell a process's memory")
def test_the_memory_of_a_part_is_its_own():
    held = bytearray(b"1") * (300 << 20)
    of_part, of_child = run_part(peak_bytes, int, None)
    of_parent, _ = run_part(peak_bytes, int, os.getpid())
    assert of_part <= of_child < len(held) < of_parent


def test_dataclasses_go_there_and_come_back():
    (value, weight), _ = run_part(echo, tuple[Divergence, float], Divergence(0.5, 0.25), 2.0)
    assert (value, weight) == (Divergence(0.5, 0.25), 2.0)


def test_a_part_may_be_a_coroutine():
    assert run_part(repeated, list[int], 3)[0] == [3, 3, 3]


def test_a_part_that_fails_is_told_by_name(capfd):
    with pytest.raises(PartFailed, match=r"bench\.parts\.fails ended with exit status 1"):
        run_part(fails, int)
    assert "as it should" in capfd.readouterr().err
