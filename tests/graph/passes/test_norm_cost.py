"""A norm that several linears read is computed once."""

from __future__ import annotations

import pytest

from quire.graph.passes.fuse import fuse_norm
from tests.graph.passes.rules import fused_by
from tests.graph.sketch import Sketch

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("num_linears", [1, 2])
def test_a_norm_is_fused_into_the_linear_that_reads_it_alone(num_linears: int):
    sketch = Sketch()
    x = sketch.embed()
    h = sketch.norm(x)
    for _ in range(num_linears):
        x = sketch.graph.add(x, sketch.linear(h, x.dim))
    sketch.graph.logits(x, sketch.matrix(8, x.dim))
    names = [node.op.name for node in fused_by([fuse_norm], sketch.graph).nodes]
    assert names.count("rms_norm") == (0 if num_linears == 1 else 1)
    assert names.count("normed_linear") == (1 if num_linears == 1 else 0)
