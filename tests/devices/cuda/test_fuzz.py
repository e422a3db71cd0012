"""Random graphs give the same logits on the GPU, plain and fused, as in the interpreter."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from quire.devices.cuda.device import CudaDevice
from tests.graph.random_graphs import random_graphs
from tests.graph.sketch import Lengths, Sketch, error_of, lowered

pytestmark = pytest.mark.device

FEW = Lengths(first=6, second=2, chunk=1, third=1)
MAX_ERROR = 1e-3  # a chain of products and norms enlarges rounding errors


@pytest.mark.slow
def test_the_gpu_gives_the_same_logits(place: str):
    is_interpreted = place == "cpu"

    @settings(
        max_examples=12 if is_interpreted else 200,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(random_graphs(max_ops=8))
    def check(sketch: Sketch) -> None:
        for fuse in (False, True):
            run = lowered(CudaDevice(place), sketch, fuse=fuse)
            assert error_of(run, sketch, FEW if is_interpreted else Lengths()) < MAX_ERROR, fuse

    check()
