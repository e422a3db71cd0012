"""Weight handles: rows in the graph's order, as bytes and as numbers, without needless copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from quire.graph.weight import ComputedTensor, Transform, Weight, computed_weight, transformed
from quire.models.names import pairs_to_halves

pytestmark = pytest.mark.pure


@dataclass
class HalfTensor:
    """A stored float16 tensor that counts how often it is dequantized."""

    array: np.ndarray
    name: str = "blk.0.attn_q.weight"
    format: str = "f16"
    num_reads: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def data(self) -> np.ndarray:
        return self.array.reshape(-1).view(np.uint8)

    @property
    def num_bytes(self) -> int:
        return self.array.nbytes

    def dequantize(self) -> np.ndarray:
        self.num_reads += 1
        return self.array.astype(np.float32)


def paired(array: np.ndarray, num_heads: int) -> np.ndarray:
    """What the GGUF converter does to the rows of q and k."""
    halves = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))


@pytest.mark.parametrize("shape, num_heads", [((24, 5), 3), ((24, 5), 1), ((24,), 2)])
def test_paired_rows_come_back_as_halves(shape, num_heads):
    original = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    tensor = HalfTensor(paired(original, num_heads))
    rows = pairs_to_halves("heads", "q")({"heads": num_heads, "q": shape[0]})
    weight = transformed("layers.0.attn.q", shape, tensor, Transform(rows=rows))
    assert np.array_equal(weight.float32(), original.astype(np.float32))
    assert np.array_equal(weight.raw(), original.reshape(24, -1).view(np.uint8))
    assert np.array_equal(np.sort(weight.row_order), np.arange(24))


def test_a_weight_is_read_only_when_its_numbers_are_accessed():
    tensor = HalfTensor(np.ones((4, 6), np.float16))
    weight = Weight("norm", (4, 6), "f16", tensor)
    assert weight.row_order is None and tensor.num_reads == 0
    assert np.shares_memory(weight.raw(), tensor.array) and weight.raw().shape == (4, 12)
    assert tensor.num_reads == 0
    assert weight.float32().dtype == np.float32 and tensor.num_reads == 1


def test_a_transposed_weight_keeps_its_format_and_an_added_number_makes_it_float32():
    array = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float16)
    turned = transformed("w", (4, 6), HalfTensor(array), Transform(transposed=True))
    assert turned.format == "f16" and np.array_equal(turned.float32(), array.T.astype(np.float32))
    assert np.array_equal(turned.raw().view(np.float16), array.T)
    part = transformed("w", (2, 6), HalfTensor(array), Transform(transposed=True, rows=np.array([3, 1])))
    assert np.array_equal(part.raw().view(np.float16), array.T[[3, 1]])
    assert part.num_bytes == turned.num_bytes // 2 == 24
    norm = transformed("w", (4,), HalfTensor(array[0]), Transform(added=1.0))
    assert norm.format == "f32" and np.array_equal(norm.float32(), array[0].astype(np.float32) + np.float32(1.0))
    assert np.array_equal(norm.raw().view(np.float32).ravel(), norm.float32())
    whole = transformed("w", (4,), ComputedTensor("w", array[0].astype(np.float32)), Transform(added=1.0))
    assert np.array_equal(whole.raw().view(np.float32).ravel(), norm.float32())


def test_a_computed_weight_is_a_weight():
    weight = computed_weight("rope.frequencies", np.array([1.0, 0.5]))
    assert (weight.shape, weight.format) == ((2,), "f32")
    assert weight.float32().tolist() == [1.0, 0.5]
    assert weight.raw().view(np.float32).ravel().tolist() == [1.0, 0.5]
