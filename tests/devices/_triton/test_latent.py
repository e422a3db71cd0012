"""Latent attention by items against the op's reference: on an accelerator, or on the CPU through the interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.devices._triton.head_products import multiply_heads
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import Latent, LatentCache
from quire.ops.latent import attention_latent
from quire.ops.registry import relative_error
from tests.devices._triton.latents import SPEC, LatentStep, run_latent
from tests.devices._triton.paged import BLOCK, Text
from tests.devices.interpreted import in_interpreter, on_gpu

pytestmark = pytest.mark.device

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f8": torch.float8_e4m3fn}
HEADS = (4, 32, 16)  # heads, nope_dim, value_dim
MIXED = [Text(700), Text(0, 40), Text(45), Text(130, 9)]
SHARED = [Text(603), *(Text(600 + 9 * n, 1, 37) for n in range(9)), Text(45)]


def assert_matches(step: LatentStep, place: str, dtype: str = "f32", cache: str | None = None) -> None:
    kinds = DTYPES[dtype], DTYPES[cache or dtype]
    step = step.rounded(*kinds)
    error = relative_error(run_latent(step, place, *kinds).out, step.reference())
    assert error <= attention_latent.tolerance[dtype] * (1 if dtype == "f32" else 2)  # queries and sums are rounded


@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32")])
def test_it_matches_the_reference_on_the_ops_examples(dtype, place):
    for args in list(attention_latent.example_args(dtype))[:: 1 if dtype == "f32" else 5]:
        assert_matches(LatentStep(**args), place, dtype)


@pytest.mark.parametrize("cache", ["bf16", "f8"])
def test_rows_of_all_lengths_and_chunks_match(cache, place):
    assert_matches(LatentStep.random(SPEC, HEADS, MIXED, 80), place, "bf16", cache)


@pytest.mark.interpreted
@pytest.mark.parametrize("num_heads", [1, 20, *(pytest.param(each, marks=pytest.mark.slow) for each in (48, 71, 128))])
def test_any_number_of_heads_shares_the_latents(num_heads, place):
    """Heads of one block fill the rows of a product, or its columns; more heads have several blocks."""
    texts = [Text(300), Text(0, 5)]
    assert_matches(LatentStep.random(SPEC, (num_heads, 16, 16), texts, 30), place, "bf16")


@pytest.mark.parametrize("heads", [16, *on_gpu(20, 64, 128)])
def test_the_sizes_of_deepseek_match(heads, place):
    texts = [Text(100), Text(0, 3)] if place == "cpu" else [Text(9000), Text(700, 1), Text(0, 300), Text(2000, 7)]
    assert_matches(LatentStep.random(Latent(512, 64), (heads, 128, 128), texts, 1000), place, "bf16")


@pytest.mark.interpreted
@pytest.mark.parametrize("dims", [(40, 24), (48, 4), (16, 64)], ids=str)
def test_latents_and_rotated_keys_have_any_size(dims, place):
    assert_matches(LatentStep.random(Latent(*dims), (3, 24, 40), MIXED, 80), place)


@pytest.mark.parametrize("num_ctas", [8, *in_interpreter(64)])
def test_rows_that_share_a_prefix_read_it_together(num_ctas, place):
    step = LatentStep.random(SPEC, (16, 16, 16), SHARED, 120)
    answer = run_latent(step, place, num_ctas=num_ctas)
    assert answer.counts.wide > 0 and answer.counts.partials > 0
    assert relative_error(answer.out, step.reference()) <= attention_latent.tolerance["f32"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32")])
def test_with_fixed_chunks_a_token_depends_on_its_own_text_alone(dtype, place):
    """Rows of one step; then the same tokens in other chunks, beside other rows (law 8)."""
    texts = [Text(0, 150), Text(290, 40), Text(600)]
    step = LatentStep.random(SPEC, HEADS, texts, 80)
    whole = run_latent(step, place, DTYPES[dtype], fixed_chunk=128).out
    step = replace(step, cache=_written(step))
    for row, (text, start) in enumerate(zip(texts, step.batch.starts, strict=False)):
        for first, past in {(0, text.new), (text.new // 2, text.new), (text.new - 1, text.new)}:
            part = _part(step, row, int(start) + first, int(start) + past)
            found = run_latent(part, place, DTYPES[dtype], fixed_chunk=128, num_ctas=3 + row).out
            assert np.array_equal(found, whole[start + first : start + past]), (row, first, past)


@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32")])
def test_whole_prompts_are_computed_from_expanded_keys(dtype, place):
    """Two prompts in one tile of queries, one over several tiles, beside rows that have a cache."""
    texts = [Text(0, 21), Text(0, 23), Text(300), Text(0, 150), Text(16, 40), Text(0, 19)]
    step = LatentStep.random(SPEC, (3, 24, 40), texts, 60).rounded(DTYPES[dtype], DTYPES[dtype])
    answer = run_latent(step, place, DTYPES[dtype], expanded_tokens=20)
    assert answer.counts.has_expanded and answer.counts.narrow > 0 and answer.counts.wide > 0
    assert relative_error(answer.out, step.reference()) <= 2 * attention_latent.tolerance[dtype]


def _written(step: LatentStep) -> LatentCache:
    cache = LatentCache(step.cache.spec, step.cache.rows.copy())
    cache.write(step.batch.slots, step.latent, step.k_rope)
    return cache


def _part(step: LatentStep, row: int, begin: int, end: int) -> LatentStep:
    """Some tokens of one row, as a step of their own."""
    table, start = step.batch.block_tables[row].tolist(), int(step.batch.positions[begin])
    batch = Batch.of([RowPart([0] * (end - begin), start, table)], BLOCK)
    names = ("q", "q_rope", "latent", "k_rope")
    return replace(step, batch=batch, **{name: getattr(step, name)[begin:end] for name in names})


@pytest.mark.parametrize("num_tokens", [1, 17, 70])
@pytest.mark.parametrize("sums_last", [False, True])
def test_each_head_is_multiplied_with_its_own_matrix(num_tokens, sums_last, place):
    rng, (heads, columns, sums) = np.random.default_rng(1), (3, 40, 72)
    x, weight = rng.standard_normal((num_tokens, heads, sums)), rng.standard_normal((heads, columns, sums))
    tensors = (torch.from_numpy(each).to(place, torch.bfloat16) for each in (x, weight))
    x, weight = tensors
    expected = torch.einsum("ths,hcs->thc", x.float(), weight.float()).reshape(num_tokens, -1)
    matrix = weight if sums_last else weight.transpose(1, 2).contiguous()
    found = [multiply_heads(x.flatten(1), matrix, sums_last=sums_last, fixed=fixed) for fixed in (False, True)]
    for each in found:
        assert relative_error(each.float().cpu().numpy(), expected.cpu().numpy()) < 1e-2
