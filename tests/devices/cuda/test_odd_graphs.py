"""Graphs that no architecture draws, on the device, fused and plain, against the references."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda.device import CudaDevice
from quire.graph.graph import Graph, Value
from quire.graph.interpret import Interpreter
from quire.graph.weight import computed_weight
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV
from quire.ops.registry import relative_error
from tests.devices.interpreted import in_interpreter

pytestmark = pytest.mark.device

DIM, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 4, 2, 16, 50
SHAPES = {
    "embed": (VOCAB, DIM),
    "q": (HEADS * HEAD_DIM, DIM),
    "k": (KV_HEADS * HEAD_DIM, DIM),
    "v": (KV_HEADS * HEAD_DIM, DIM),
    "out": (DIM, HEADS * HEAD_DIM),
    "square": (DIM, DIM),
    "square2": (DIM, DIM),
    "norm": (DIM,),
    "q_norm": (HEAD_DIM,),
    "rope": (HEAD_DIM // 2,),
    "other_rope": (HEAD_DIM // 2,),
}
LIMITS = Limits(max_tokens=32, max_rows=4, max_logits=32, max_blocks=2, num_blocks=8, kv_dtype="f32")
STEPS = (
    [RowPart([3, 1, 4, 1, 5, 9], 0, [2], 6), RowPart([2, 6], 0, [5], 1)],
    [RowPart([5], 6, [2], 1), RowPart([3], 2, [5], 1)],
)


def attend(g: Graph, x: Value) -> Value:
    q, k, v = (g.linear(x, word) for word in "qkv")
    q, k = (g.rope(each, "rope", head_dim=HEAD_DIM) for each in (q, k))
    cache = g.cache(PagedKV(KV_HEADS, HEAD_DIM, HEAD_DIM))
    return g.linear(g.attention(q, k, v, cache, scale=0.25), "out")


def residual_read_again(g: Graph, x: Value) -> Value:
    y = g.add(x, attend(g, x))
    return g.add(g.add(y, g.linear(g.activation(y, "tanh"), "square")), g.multiply(y, x))


def residual_that_is_multiplied_too(g: Graph, x: Value) -> Value:
    x = g.add(x, attend(g, x))
    return g.add(x, g.linear(x, "square"))


def sum_of_a_normed_product_read_by_plain_ops(g: Graph, x: Value) -> Value:
    x = g.add(x, g.rms_norm(attend(g, x), "norm", eps=1e-3))
    return g.add(g.activation(x, "tanh"), g.layer_norm(x, "norm", eps=1e-3))


def sums_in_a_row(g: Graph, x: Value) -> Value:
    x = g.add(x, g.rms_norm(attend(g, x), "norm", eps=1e-3))
    x = g.add(x, g.linear(g.activation(x, "relu2"), "square"))
    return g.add(x, g.scale(g.linear(g.activation(x, "gelu"), "square2"), 0.3))


def norm_on_q_alone(g: Graph, x: Value) -> Value:
    q, k, v = (g.linear(x, word) for word in "qkv")
    q = g.rms_norm(q, "q_norm", eps=1e-3, group=HEAD_DIM)
    q, k = (g.rope(each, "rope", head_dim=HEAD_DIM) for each in (q, k))
    return g.add(x, g.linear(g.attention(q, k, v, g.cache(PagedKV(KV_HEADS, HEAD_DIM, HEAD_DIM)), scale=0.25), "out"))


def two_ropes(g: Graph, x: Value) -> Value:
    q, k, v = (g.linear(x, word) for word in "qkv")
    q, k = g.rope(q, "rope", head_dim=HEAD_DIM), g.rope(k, "other_rope", head_dim=HEAD_DIM)
    return g.add(x, g.linear(g.attention(q, k, v, g.cache(PagedKV(KV_HEADS, HEAD_DIM, HEAD_DIM)), scale=0.25), "out"))


def values_that_are_keys_and_a_shared_cache(g: Graph, x: Value) -> Value:
    k, cache = g.linear(x, "k"), g.cache(PagedKV(KV_HEADS, HEAD_DIM, HEAD_DIM))
    x = g.add(x, g.linear(g.attention(g.linear(x, "q"), k, k, cache, scale=0.25), "out"))
    return g.add(x, g.linear(g.attention_shared(g.linear(x, "q"), cache, scale=0.25), "out"))


def layers_of_different_heads(g: Graph, x: Value) -> Value:
    x = g.add(x, attend(g, x))
    q, k, v = g.linear(x, "q"), g.linear(x, "k"), g.linear(x, "v")
    cache = g.cache(PagedKV(1, 2 * HEAD_DIM, 2 * HEAD_DIM))
    return g.add(x, g.linear(g.attention(q, k, v, cache, scale=0.2), "out"))


def no_attention(g: Graph, x: Value) -> Value:
    return g.add(x, g.linear(g.rms_norm(x, "norm", eps=1e-3), "square"))


EVERYWHERE = (residual_read_again, sums_in_a_row, values_that_are_keys_and_a_shared_cache)
ODD = (
    *EVERYWHERE,
    *in_interpreter(residual_that_is_multiplied_too, sum_of_a_normed_product_read_by_plain_ops, norm_on_q_alone),
    *in_interpreter(two_ropes, layers_of_different_heads, no_attention),
)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("block", ODD)
def test_an_odd_graph_matches_the_references(block: Callable[[Graph, Value], Value], fuse, place):
    rng = np.random.default_rng(0)
    weights = {name: computed_weight(name, 0.3 * rng.standard_normal(shape)) for name, shape in SHAPES.items()}
    graph = Graph.over(weights)
    graph.logits(block(graph, graph.embed("embed")), "embed", factor=0.5, cap=4.0)
    interpreter = Interpreter(graph, weights, LIMITS.num_blocks)
    program = CudaDevice(place).lower(graph, weights, LIMITS, LoweringOptions(dtype="f32", fuse=fuse))
    for rows in STEPS:
        batch = Batch.of(rows, LIMITS.block_tokens)
        assert relative_error(program.launch(batch).result().logits, interpreter.run(batch)) <= 1e-4
