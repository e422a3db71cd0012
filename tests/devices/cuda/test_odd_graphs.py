"""Odd graphs give the same logits on the GPU, plain and fused, as in the interpreter."""

from __future__ import annotations

import pytest

from quire.devices.cuda.device import CudaDevice
from tests.graph.odd_graphs import HEADLESS, ODD_GRAPHS, odd_graph
from tests.graph.sketch import MAX_ERROR, Lengths, error_of, lowered

pytestmark = pytest.mark.device

FEW = Lengths(first=7, second=2, chunk=2, third=1)  # Triton's interpreter takes 20 ms for a token


NAMES = [name for name in ODD_GRAPHS if name not in HEADLESS]
CASES = [(name, fuse) for name in NAMES for fuse in (True, False)]
OFTEN = {*CASES[::6], *CASES[1::12]}  # the others take two minutes


@pytest.mark.parametrize(
    "name, fuse",
    [pytest.param(*case, marks=() if case in OFTEN else pytest.mark.slow) for case in CASES],
    ids=[f"{name}-{'fused' if fuse else 'plain'}" for name, fuse in CASES],
)
def test_the_gpu_gives_the_same_logits(name: str, fuse: bool, place: str):
    sketch, lengths = odd_graph(name), FEW if place == "cpu" else Lengths()
    assert error_of(lowered(CudaDevice(place), sketch, fuse=fuse), sketch, lengths) < MAX_ERROR
