"""`quire bench states`: every shape is a graph, and the steps are such that devices accept them."""

from __future__ import annotations

import pytest

from quire.bench.states import BLOCK, SHAPES, TimedStep, layer_graph

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("shape", SHAPES)
def test_layers_of_every_shape_have_states_of_their_own(shape: str):
    for layer in SHAPES[shape]:
        graph, _ = layer_graph(layer, 3)
        assert graph.caches == [layer.state] * 3
        assert [node.op.name for node in graph.nodes].count(layer.op) == 3


def test_rows_of_a_step_have_states_of_their_own():
    batch = TimedStep(3, 40, 1).batch()
    batch._check_states()
    assert batch.states is not None and batch.states.source.tolist() == [0, 1, 2]
    assert batch.block_tables.shape == (3, -(-41 // BLOCK))
