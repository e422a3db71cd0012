"""An op without a native kernel runs on its reference; the ops around it run natively."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from quire.devices import base
from quire.devices.cpu.lower import KERNELS
from quire.devices.cpu.program import NativeProgram
from quire.graph.graph import Graph
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weight, Weights
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV
from quire.ops.registry import Op, relative_error
from tests.devices.cpu.programs import HAS_NATIVE, LIMITS, lower, session
from tests.models.toys import Session, make_toy, some_tokens
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

DIM, VOCAB = 64, 70
F32 = replace(LIMITS, kv_dtype="f32")
STEP = Batch.of([RowPart(list(range(9)), 0, [3], num_logits=2), RowPart([7], 0, [1])], LIMITS.block_tokens)


def twist(x, weight, positions, *, shift):
    """A test op that reads a weight and the step: x rolled by `shift`, times weight, plus the position."""
    return np.roll(x, shift, axis=1) * weight + positions[:, None].astype(np.float32) * np.float32(0.01)


def halve(x):
    """A test op of selected rows."""
    return x * np.float32(0.5)


def fail(x):
    raise LookupError("no such number")


TWIST, HALVE, FAIL = Op(twist, ("weight",), {}), Op(halve, (), {}), Op(fail, (), {})
TWIST.shape(lambda x, weight, positions, *, shift: x)
HALVE.shape(lambda x: x)
FAIL.shape(lambda x: x)


def weights_of(fmt: str) -> Weights:
    rng = np.random.default_rng(3)
    shapes = {"embed": (VOCAB, DIM), "before": (DIM, DIM), "after": (DIM, DIM), "twist": (DIM,), "norm": (DIM,)}
    arrays = {name: rng.standard_normal(shape, np.float32) * np.float32(0.2) for name, shape in shapes.items()}
    tensors = {name: EncodedTensor.of(name, x, fmt if x.ndim == 2 else "f32") for name, x in arrays.items()}
    return {name: Weight(name, x.shape, x.format, x) for name, x in tensors.items()}


def graph_with(weights: Weights, *ops: Op) -> Graph:
    """Native ops, then the given ones, then native ops again."""
    g = Graph.over(weights)
    x = g.add(g.embed("embed"), g.linear(g.rms_norm(g.embed("embed"), "norm", eps=1e-5), "before"))
    for op in ops:
        x = g.draw(op, {"x": x}, {"weight": "twist"}, shift=3) if op is TWIST else g.draw(op, {"x": x}, {})
    g.logits(g.add(x, g.linear(x, "after")), "embed")
    return g


def lowered(graph: Graph, weights: Weights, **options) -> NativeProgram:
    program = base.open("cpu").lower(graph, weights, F32, base.LoweringOptions(**options))
    assert isinstance(program, NativeProgram)
    return program


def names_that_fell_back(program: NativeProgram) -> list[str]:
    return [] if program.fallback is None else [placed.node.op.name for placed in program.fallback.nodes]


@pytest.mark.parametrize("fmt, tolerance", [("f32", 1e-5), ("q8_0", 2e-2)])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_op_without_a_kernel_runs_alone_on_its_reference(fmt, tolerance, num_threads, caplog):
    weights = weights_of(fmt)
    graph = graph_with(weights, TWIST, TWIST)
    program = lowered(graph, weights, num_threads=num_threads)
    assert names_that_fell_back(program) == ["twist", "twist"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "The op twist has no native kernel" in caplog.text
    expected = Interpreter(graph, weights, LIMITS.num_blocks, LIMITS.block_tokens).run(STEP)
    for _ in range(3):
        assert relative_error(program.launch(STEP).result().logits, expected) < tolerance


def test_a_graph_whose_ops_all_have_kernels_does_not_fall_back(caplog):
    weights = weights_of("f32")
    assert lowered(graph_with(weights), weights).fallback is None and not caplog.records


def test_an_op_of_selected_tokens_runs_on_their_rows_alone():
    """`narrow_tail` moves the selection before it: a long prompt passes it few rows."""
    weights = weights_of("f32")
    graph = graph_with(weights, HALVE)
    program = lowered(graph, weights)
    assert program.fallback is not None and program.fallback.nodes[0].node.output.shape == ("logits", DIM)
    expected = Interpreter(graph, weights, LIMITS.num_blocks, LIMITS.block_tokens).run(STEP)
    assert relative_error(program.launch(STEP).result().logits, expected) < 1e-5
    without_logits = replace(STEP, logits_at=np.zeros(0, np.int32))
    assert program.launch(without_logits).result().logits.shape == (0, VOCAB)


def test_an_error_of_a_reference_is_raised_by_the_launch():
    weights = weights_of("f32")
    program = lowered(graph_with(weights, FAIL, TWIST), weights)
    for _ in range(2):
        with pytest.raises(LookupError, match="no such number"):
            program.launch(STEP)


def test_a_kernel_that_is_missing_for_a_plain_op_costs_that_op_alone(monkeypatch):
    model, tokens = make_toy("llama").draw(), some_tokens(40)
    monkeypatch.delitem(KERNELS, "gated_linear")
    program = lower(model, F32, precision="float")
    assert isinstance(program, NativeProgram) and set(names_that_fell_back(program)) == {"gated_linear"}
    expected = Session(model).step({"a": tokens})["a"]
    assert relative_error(session(program, model).step({"a": tokens})["a"], expected) < 1e-4


def newest(q, k, v, cache, batch):
    """A test op with a cache of its own kind: the mean of a row's values so far, plus q."""
    cache.write(batch.slots, k, v)
    out = np.empty_like(v)
    for row, length in enumerate(batch.lengths):
        _, values = cache.read(batch.block_tables[row], 0, int(length))
        for token in range(batch.starts[row], batch.starts[row + 1]):
            out[token] = values[: batch.positions[token] + 1].mean(0).reshape(-1)
    return out + q


NEWEST = Op(newest, (), {})
NEWEST.shape(lambda q, k, v, cache: q)


def test_all_nodes_of_a_cache_fall_back_if_one_does():
    weights = weights_of("f32")
    g = Graph.over(weights)
    x, cache = g.embed("embed"), g.cache(PagedKV(2, DIM // 2, DIM // 2))
    written = g.node(NEWEST, {"q": x, "k": x, "v": x}, {}, {}, cache=cache.index)
    g.nodes.append(written)
    g._written.add(cache.index)
    y = g.attention_shared(g.linear(x, "before"), cache, scale=0.1)
    other = g.attention(x, x, x, g.cache(PagedKV(2, DIM // 2, DIM // 2)), scale=0.1)
    g.logits(g.add(g.add(written.output, y), other), "embed")
    program = lowered(g, weights)
    assert names_that_fell_back(program) == ["newest", "attention_shared"]
    reference = Interpreter(g, weights, LIMITS.num_blocks, LIMITS.block_tokens)
    copied = replace(Batch.of([RowPart([4, 4], 9, [8], num_logits=2)], 16), copies=np.array([[3, 8, 9]], np.int32))
    for batch in (STEP, Batch.of([RowPart([5], 9, [3])], 16), copied):
        assert relative_error(program.launch(batch).result().logits, reference.run(batch)) < 1e-5
