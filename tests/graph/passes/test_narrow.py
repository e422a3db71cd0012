"""The narrow tail: what follows pooling computes rows of pools, none of which is a token that yields logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.graph.graph import Graph
from quire.graph.interpret import Interpreter
from quire.graph.passes.narrow import narrow_tail
from quire.graph.weight import computed_weight
from quire.ops.batch import Batch, RowPart

pytestmark = pytest.mark.pure


def test_a_layer_of_pooled_vectors_is_not_narrowed_to_tokens():
    rng, shapes = np.random.default_rng(0), {"embed": (9, 4), "head": (9, 4), "dense": (3, 4)}
    weights = {name: computed_weight(name, rng.standard_normal(shape)) for name, shape in shapes.items()}
    graph = Graph.over(weights)
    graph.pools = True
    graph.logits(graph.activation(graph.embed("embed"), "silu"), "head")
    graph.outputs["pooled"] = graph.linear(graph.outputs["pooled"], "dense")
    batch = Batch.of([RowPart([1, 2, 3], 0, [0]), RowPart([4, 5], 0, [1])], 16)
    batch = replace(batch, pools=np.array([(0, 3, 1)], np.int32))
    plain, narrowed = (Interpreter(each, weights, 2).outputs(batch) for each in (graph, narrow_tail(graph)))
    assert plain["pooled"].shape == (1, 3)
    for kind in ("pooled", "logits"):
        assert np.array_equal(plain[kind], narrowed[kind])
