"""GGUF's 4-bit formats and matrices of several tensors, converted to Int4."""

from __future__ import annotations

import numpy as np
import pytest

from quire.graph.weight import PLAIN, Transform, Weight
from quire.models.names import pairs_to_halves
from quire.quant.int4 import Int4
from quire.weights.quantized_tensors import GroupedInt4, as_grouped_int4
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = pytest.mark.pure


PAIRS = pairs_to_halves("heads", "rows")


@pytest.mark.parametrize("fmt", ["q4_0", "q4_1", "q4_k"])
@pytest.mark.parametrize("transform", [PLAIN, Transform(rows=PAIRS({"heads": 2, "rows": 8}))])
def test_a_gguf_tensor_means_the_same_numbers(fmt: str, transform: Transform):
    weight = Weight("w", (8, 512), fmt, EncodedTensor.random("w", (8, 512), fmt, seed=3), transform)
    parts = as_grouped_int4(weight)
    assert parts is not None and parts.group == 32 and parts.packed.shape == (8, 256)
    np.testing.assert_allclose(parts.dequantize(), weight.float32(), rtol=1e-6, atol=1e-7)


def test_other_formats_cannot_be_converted():
    assert as_grouped_int4(Weight("w", (8, 512), "q8_0", EncodedTensor.random("w", (8, 512), "q8_0", seed=3))) is None


def test_rows_and_columns_are_reordered():
    rng = np.random.default_rng(1)
    columns = rng.permutation(16)
    parts = Int4(rng.integers(0, 256, (4, 8), np.uint8), rng.random((4, 2), np.float32), rng.random((4, 2), np.float32))
    source = GroupedInt4("w", (4, 16), 8, lambda: parts._replace(columns=columns))
    weight = Weight("w", (4, 16), source.format, source, Transform(rows=PAIRS({"heads": 1, "rows": 4})))
    moved = as_grouped_int4(weight)
    assert moved is not None
    np.testing.assert_array_equal(moved.dequantize(), weight.float32())
    np.testing.assert_array_equal(weight.float32()[:, columns], parts.dequantize()[[0, 2, 1, 3]])
    assert source.num_bytes == 4 * 8 + 2 * 4 * 4 * 2 and len(source.data) == 32
