"""Stacks of matrices: one matrix is read without the others, in every format and layout."""

from __future__ import annotations

import numpy as np
import pytest

from quire.graph.weight import ComputedTensor, StackedTensor, StoredTensor, Transform, Weight, transformed
from quire.quant.int4 import Int4
from quire.quant.registry import all_formats
from quire.weights.container import Tensor
from quire.weights.quantized_tensors import GroupedInt4, ScaledTensor, as_grouped_int4, scales_of
from quire.weights.random_weights import RandomTensor, random_int4

pytestmark = pytest.mark.pure

EXPERTS, ROWS, COLUMNS = 3, 256, 512
rng = np.random.default_rng(0)


def stored(fmt: str, *shape: int) -> Tensor:
    """A tensor of random bytes of this format, without infinities in its scales."""
    size = all_formats()[fmt].bytes_for(int(np.prod(shape)))
    return Tensor("w", shape, fmt, rng.integers(0, 60, size, np.uint8))


def scaled(block: tuple[int, int] | None) -> ScaledTensor:
    shape = (ROWS, 1) if block is None else (-(-ROWS // block[0]), -(-COLUMNS // block[1]))
    scales = ComputedTensor("s", rng.random(shape, np.float32) + 0.5)
    return ScaledTensor(stored("f8_e4m3", ROWS, COLUMNS), scales, block)


def int4(index: int) -> GroupedInt4:
    packed = rng.integers(0, 256, (ROWS, COLUMNS // 2), np.uint8)
    scales, zeros = rng.random((2, ROWS, COLUMNS // 128), np.float32)
    return GroupedInt4(f"w.{index}", (ROWS, COLUMNS), 128, lambda: Int4(packed, scales, zeros))


def stack_of(parts: list[StoredTensor]) -> StackedTensor:
    return StackedTensor("w", tuple(parts))


SOURCES = {
    **{fmt: stored(fmt, EXPERTS, ROWS, COLUMNS) for fmt in ("bf16", "f16", "f32", "q4_k", "q6_k", "q8_0", "mxfp4")},
    "apart": stack_of([stored("bf16", ROWS, COLUMNS) for _ in range(EXPERTS)]),
    "fp8 rows": stack_of([scaled(None) for _ in range(EXPERTS)]),
    "fp8 blocks": stack_of([scaled((128, 128)) for _ in range(EXPERTS)]),
    "int4": stack_of([int4(i) for i in range(EXPERTS)]),
    "computed": ComputedTensor("w", rng.random((EXPERTS, ROWS, COLUMNS), np.float32)),
    "random": RandomTensor("w", (EXPERTS, ROWS, COLUMNS), 0.02),
    "random fp8": RandomTensor("w", (EXPERTS, ROWS, COLUMNS), 0.02, format="f8_e4m3"),
    "random int4": random_int4("w", (EXPERTS, ROWS, COLUMNS), 0.02, 128),
}
TRANSFORMS = {
    "as stored": Transform(),
    "half": Transform(rows=np.arange(ROWS // 2, ROWS)),
    "every second": Transform(rows=np.arange(1, ROWS, 2)),
    "transposed": Transform(transposed=True),
    "transposed half": Transform(transposed=True, rows=np.arange(1, COLUMNS, 2)),
}


def weight_of(source: StoredTensor, transform: Transform) -> Weight:
    rows, columns = source.shape[1:][:: -1 if transform.transposed else 1]
    kept = rows if transform.rows is None else len(transform.rows)
    return transformed("layers.0.experts.up", (EXPERTS, kept, columns), source, transform)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_matrix_of_a_stack_has_its_numbers_and_its_bytes(source, transform):
    stack = weight_of(SOURCES[source], TRANSFORMS[transform])
    whole, raw = stack.float32(), stack.raw().reshape(EXPERTS, stack.shape[1], -1)
    for index in range(EXPERTS):
        matrix = stack.matrix(index)
        assert (matrix.shape, matrix.format) == (stack.shape[1:], stack.format)
        assert np.array_equal(matrix.float32(), whole[index], equal_nan=True)
        assert np.array_equal(matrix.raw(), raw[index])
    assert sum(stack.matrix(i).num_bytes for i in range(EXPERTS)) == pytest.approx(stack.num_bytes, abs=EXPERTS)


def test_a_matrix_of_a_stored_stack_is_a_view_and_those_of_parts_are_not_read():
    tensor = stored("q4_k", EXPERTS, ROWS, COLUMNS)
    assert np.shares_memory(Weight("w", tensor.shape, "q4_k", tensor).matrix(2).raw(), tensor.data)
    first = int4(0)
    unread = GroupedInt4("w.1", (ROWS, COLUMNS), 128, lambda: pytest.fail("another matrix was read"))
    stack = weight_of(stack_of([first, unread]), Transform())
    assert np.array_equal(stack.matrix(0).float32(), first.dequantize())


def test_only_a_stack_has_matrices():
    with pytest.raises(TypeError, match="no stack"):
        weight_of(SOURCES["bf16"], Transform()).matrix(0).matrix(0)


def test_rows_of_int4_matrices_keep_their_scales():
    matrix = weight_of(SOURCES["int4"], TRANSFORMS["half"]).matrix(1)
    parts = as_grouped_int4(matrix)
    assert parts is not None and np.array_equal(parts.dequantize(), matrix.float32())


@pytest.mark.parametrize(
    "rows, height",
    [
        (None, 128),
        (np.arange(128, 256), 128),
        (np.arange(255, -1, -1), 1),
        (np.arange(192), 1),  # parts of a head of 192: not whole blocks
        (np.arange(64, 192), 1),
        (np.arange(1, 256, 2), 1),
    ],
)
@pytest.mark.parametrize("block", [(128, 128), None])
def test_scales_of_rows_of_a_matrix_of_8_bit_floats_are_exact(rows, height, block):
    source = scaled(block)
    kept = ROWS if rows is None else len(rows)
    weight = transformed("w", (kept, COLUMNS), source, Transform(rows=rows))
    scales = scales_of(weight)
    assert scales.height == (height if block else 1)
    wide = scales.values.repeat(scales.height, 0)[:kept].repeat(scales.width, 1)[:, :COLUMNS]
    values = all_formats()["f8_e4m3"].dequantize(weight.raw()) * wide
    assert np.array_equal(values, weight.float32())


def test_a_bias_of_a_stack_takes_its_numbers_from_the_rows_of_its_matrices():
    array = rng.random((EXPERTS, 8), np.float32)
    bias = transformed(
        "b", (EXPERTS, 4), ComputedTensor("b", array), Transform(rows=np.arange(1, 8, 2), has_vectors=True)
    )
    assert np.array_equal(bias.float32(), array[:, 1::2])
    assert np.array_equal(bias.raw().view(np.float32), array[:, 1::2])


def test_matrices_of_a_random_stack_differ():
    stack = RandomTensor("w", (EXPERTS, 4, 8), 0.02).dequantize()
    assert not any(np.array_equal(stack[0], stack[i]) for i in (1, 2))
