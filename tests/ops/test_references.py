"""References against the simplest formulation of the same maths, and their results against other batches."""

from __future__ import annotations

import numpy as np
import pytest

from quire.ops.attention import attention
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedCache, PagedKV
from quire.ops.embed import embed
from quire.ops.fused import gated_linear, linear_split
from quire.ops.linear import linear
from quire.ops.norm import rms_norm
from quire.ops.registry import relative_error
from quire.ops.rope import rope
from quire.ops.select import select

pytestmark = pytest.mark.pure


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_linear_is_a_matrix_product_in_double_precision_up_to_rounding():
    x, weight, bias = normal(37, 96), normal(50, 96, seed=1), normal(50, seed=2)
    expected = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
    assert relative_error(linear(x, weight, bias), expected) < 1e-6
    assert np.array_equal(linear_split(x, (weight, weight[:7]), (bias, None))[0], linear(x, weight, bias))


@pytest.mark.parametrize("dim_in, dim_out", [(576, 1536), (63, 130), (96, 33), (5, 3)])
def test_a_token_is_multiplied_to_the_same_bits_in_any_batch(dim_in, dim_out):
    x, weight = normal(37, dim_in), normal(dim_out, dim_in, seed=1)
    together = linear(x, weight, None)
    for begin, end in ((0, 1), (5, 6), (36, 37), (3, 20), (8, 16)):
        assert np.array_equal(linear(x[begin:end], weight, None), together[begin:end])


def test_no_tokens_give_no_rows():
    x = np.zeros((0, 8), np.float32)
    assert linear(x, normal(5, 8), None).shape == (0, 5)
    assert select(normal(3, 8), np.zeros(0, np.int32)).shape == (0, 8)


def test_embed_takes_rows_in_the_order_of_the_tokens():
    table = normal(9, 4)
    assert np.array_equal(embed(np.array([8, 0, 8], np.int32), table), table[[8, 0, 8]])


def test_a_normed_vector_has_unit_root_mean_square():
    ones = np.ones(64, np.float32)
    assert np.allclose(np.square(rms_norm(normal(5, 64) * 7, ones, eps=0.0)).mean(-1), 1.0, atol=1e-5)
    heads = rms_norm(normal(5, 64) * 7, ones[:16], eps=0.0, group=16).reshape(5, 4, 16)
    assert np.allclose(np.square(heads).mean(-1), 1.0, atol=1e-5)


def test_a_strongly_negative_gate_closes_without_a_warning():
    x = np.array([[-1.0], [1.0]], np.float32)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        out = gated_linear(x, np.float32([[1000.0]]), np.float32([[1.0]]), None, None, kind="silu")
    assert out.ravel().tolist() == [0.0, 1000.0]


FREQUENCIES = (100.0 ** -(np.arange(8) / 8)).astype(np.float32)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_makes_products_depend_on_distance_alone(interleaved):
    q, k = normal(1, 16), normal(1, 16, seed=1)

    def product_at(first: int, second: int) -> float:
        at = [np.array([p], np.int32) for p in (first, second)]
        turned = [
            rope(x, FREQUENCIES, p, head_dim=16, interleaved=interleaved) for x, p in zip((q, k), at, strict=True)
        ]
        return float((turned[0] * turned[1]).sum())

    assert product_at(9, 4) == pytest.approx(product_at(105, 100), rel=1e-3)
    assert product_at(9, 4) != pytest.approx(product_at(9, 5), rel=1e-2)


def test_both_styles_of_rope_agree_up_to_the_order_of_a_head():
    x, positions = normal(6, 3 * 16), np.arange(6, dtype=np.int32)
    to_pairs = np.arange(16).reshape(2, 8).T.ravel()  # half-split order -> interleaved order
    paired = x.reshape(6, 3, 16)[..., to_pairs].reshape(6, 48)
    halves = rope(x, FREQUENCIES, positions, head_dim=16, scaling=1.5)
    pairs = rope(paired, FREQUENCIES, positions, head_dim=16, scaling=1.5, interleaved=True)
    assert np.array_equal(halves.reshape(6, 3, 16)[..., to_pairs].reshape(6, 48), pairs)


def test_rope_does_not_rotate_numbers_beyond_its_frequencies_or_position_zero():
    x = normal(2, 20)
    out = rope(x, FREQUENCIES, np.array([0, 7], np.int32), head_dim=20)
    assert np.array_equal(out[0], x[0]) and np.array_equal(out[1, 16:], x[1, 16:])
    assert not np.array_equal(out[1, :16], x[1, :16])


def naive_attention(q, k, v, scale, window):
    """One row, all of its tokens, in double precision and with a mask: q [n, H, D], k and v [n, Hkv, D]."""
    n, num_heads, _ = q.shape
    k, v = (np.repeat(x.astype(np.float64), num_heads // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float64), k) * scale
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    weights = np.exp(np.where(hidden, -np.inf, scores))
    return np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)


def attend_in_steps(q, k, v, window, chunks):
    """The same row through a paged cache full of random values, in chunks, with shuffled blocks."""
    num_kv, dim = k.shape[1:]
    spec = PagedKV(num_kv, dim, dim, window)
    cache = PagedCache(spec, normal(12, 4, num_kv, dim, seed=5), normal(12, 4, num_kv, dim, seed=6))
    blocks, out, at = [7, 3, 11, 0, 5, 9, 2], [], 0
    for size in chunks:
        batch = Batch.of([RowPart([0] * size, at, blocks)], 4)
        batch.check(num_blocks=12, block_tokens=4)
        flat = [x[at : at + size].reshape(size, -1) for x in (q, k, v)]
        out.append(attention(*flat, cache, batch, None, None, None, scale=0.3))
        at += size
    return np.concatenate(out).reshape(q.shape)


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("num_heads, num_kv", [(4, 1), (6, 2), (3, 3)])
def test_paged_attention_equals_masked_attention(window, num_heads, num_kv):
    q, k, v = normal(26, num_heads, 8), normal(26, num_kv, 8, seed=1), normal(26, num_kv, 8, seed=2)
    expected = naive_attention(q, k, v, 0.3, window)
    whole = attend_in_steps(q, k, v, window, [26])
    assert relative_error(whole, expected) < 1e-5
    for chunks in ([1] * 26, [7, 7, 7, 5], [25, 1], [4, 22]):
        assert np.array_equal(attend_in_steps(q, k, v, window, chunks), whole)


def test_a_row_may_read_what_another_row_writes_in_the_same_step():
    """Two requests share a prefix block that only one of them computes, in the step in which both need it."""
    spec = PagedKV(1, 8, 8)
    q, k, v = normal(6, 8), normal(6, 8, seed=1), normal(6, 8, seed=2)
    alone = PagedCache.empty(spec, 4, 4)
    expected = attention(q, k, v, alone, Batch.of([RowPart([0] * 6, 0, [0, 1])], 4), None, None, None, scale=1.0)
    shared = PagedCache.empty(spec, 4, 4)
    reader, writer = RowPart([0] * 2, 4, [2, 3]), RowPart([0] * 4, 0, [2])
    order = [4, 5, 0, 1, 2, 3]
    out = attention(q[order], k[order], v[order], shared, Batch.of([reader, writer], 4), None, None, None, scale=1.0)
    assert np.array_equal(out, expected[order])


def test_an_inconsistent_batch_fails_its_check():
    good = Batch.of([RowPart([5, 6], 3, [1, 0]), RowPart([7], 0, [2])], 4)
    good.check(num_blocks=3, block_tokens=4)
    assert good.slots.tolist() == [7, 0, 8] and good.lengths.tolist() == [5, 1]
    assert good.logits_at.tolist() == [1, 2] and good.starts.tolist() == [0, 2, 3]
    with pytest.raises(AssertionError):
        good.check(num_blocks=2, block_tokens=4)
    with pytest.raises(AssertionError, match="same slot"):
        Batch.of([RowPart([5], 0, [1]), RowPart([5], 0, [1])], 4).check(num_blocks=3, block_tokens=4)


def test_no_parts_make_an_empty_batch():
    batch = Batch.of([], 4)
    assert len(batch.token_ids) == 0 and batch.block_tables.shape == (0, 0) and batch.starts.tolist() == [0]
