"""Paged attention by items against the op's reference: on an accelerator, or on the CPU through the interpreter."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from quire.devices._triton.attention import SHARED_MEMORY, configs_for, padded
from quire.ops.attention import attention
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import PagedKV
from quire.ops.registry import relative_error
from tests.devices._triton.paged import BLOCK, Answer, Step, Text, run
from tests.devices.interpreted import in_interpreter

pytestmark = pytest.mark.device

TORCH_NAMES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
PAGED = PagedKV(2, 32, 32)
EXTRAS = ["softcap", "sinks", "slopes", "distances"]
SHARED = [Text(603), *(Text(600 + 9 * n, 1 + n % 3, 37) for n in range(9)), Text(45), Text(620, 30, 37)]


def assert_matches(step: Step, place: str, dtype: str = "f32", num_ctas: int = 16) -> Answer:
    step = step.rounded(TORCH_NAMES[dtype], TORCH_NAMES[dtype])
    answer = run(step, place, TORCH_NAMES[dtype], num_ctas=num_ctas)
    assert relative_error(answer.out, step.reference()) <= attention.tolerance[dtype]
    return answer


@pytest.mark.parametrize("dtype", ["bf16", *in_interpreter("f32", "f16")])
def test_it_matches_the_reference_on_the_ops_examples(dtype, place):
    examples = list(attention.example_args(dtype))
    if dtype != "f32":  # all examples run in one number format only
        examples = examples[::10]
    for args in examples:
        cache, batch = args["cache"], args["batch"]
        cache.write(batch.slots, args["k"], args["v"])
        extras = {name: args[name] for name in ("softcap", "sinks", "slopes", "distances") if args[name] is not None}
        assert_matches(Step(cache.spec, batch, args["q"], cache.keys, cache.values, extras), place, dtype)


@pytest.mark.parametrize("seed", [0, *in_interpreter(3)])
def test_it_matches_on_random_batches(seed, place):
    rng = np.random.default_rng(seed)
    window = None if seed % 2 else int(rng.integers(1, 300))
    spec = PagedKV(int(rng.integers(1, 4)), 32, 32, window)
    texts = [Text(int(rng.integers(0, 700)), int(rng.choice([1, 1, 2, 5, 40]))) for _ in range(int(rng.integers(1, 7)))]
    assert_matches(Step.random(spec, int(rng.integers(1, 9)), texts, 300, seed), place)


@pytest.mark.interpreted
@pytest.mark.parametrize("group", [1, 3, 16, 20, 71])
def test_any_number_of_heads_shares_a_key_head(group, place):
    assert_matches(Step.random(PAGED, group, [Text(40), Text(3), Text(0, 23)], 24), place)


@pytest.mark.parametrize("head_dim", [80, *in_interpreter(8, 10, 112, 128, 512)])
def test_heads_have_any_size(head_dim, place):
    step = Step.random(PagedKV(2, head_dim, head_dim), 4, [Text(40), Text(0, 23), Text(17, 3)], 24)
    assert_matches(step, place, "bf16")


@pytest.mark.parametrize("dims", [(48, 32), *in_interpreter((20, 10), (32, 112), (16, 320))], ids=str)
def test_keys_and_values_have_different_sizes(dims, place):
    step = Step.random(PagedKV(2, *dims), 3, [Text(400), Text(0, 23), Text(17, 3)], 40)
    assert assert_matches(step, place).counts.partials > 0


@pytest.mark.interpreted
@pytest.mark.parametrize("chunk, window", [(8, None), (128, None), (100, 30), (300, 500)])
def test_a_chunk_hides_the_chunks_before_it(chunk, window, place):
    texts = [Text(0, 40), Text(700), Text(128), Text(255, 2), Text(180, 30)]
    assert_matches(Step.random(PagedKV(2, 32, 32, window, chunk), 2, texts, 100), place)


@pytest.mark.parametrize(
    "texts", [[Text(900), Text(5)], *in_interpreter([Text(0, 40), Text(30, 50)], [Text(1100, 20), Text(300)], SHARED)],
    ids=["decode", "prompts", "mixed", "shared"],
)  # fmt: skip
def test_extras_are_applied_in_every_kind_of_step(texts, place):
    """A sink counts once in a row of several parts, and in one of a single part."""
    answer = assert_matches(Step.random(PAGED, 3, texts, 120, extras=EXTRAS), place, num_ctas=8)
    assert bool(answer.counts.partials) == (texts[0].new != 40)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", EXTRAS)
def test_each_extra_is_applied_alone(name, place):
    spec = PagedKV(2, 32, 32, 200 if name == "sinks" else None)
    assert_matches(Step.random(spec, 3, [Text(400), Text(90, 20)], 40, extras=[name]), place, num_ctas=8)


@pytest.mark.interpreted
def test_a_long_row_is_split_and_merged(place):
    answer = assert_matches(Step.random(PAGED, 4, [Text(900), Text(5)], 80), place)
    assert answer.counts.narrow > 2 and answer.counts.partials > 1


@pytest.mark.interpreted
def test_drafts_are_split_and_merged_together(place):
    answer = assert_matches(Step.random(PAGED, 4, [Text(900, 4), Text(700, 3)], 110), place)
    assert answer.counts.wide == 0 and answer.counts.partials > 7


def test_a_few_tokens_after_a_long_text_are_split_and_merged(place):
    answer = assert_matches(Step.random(PAGED, 4, [Text(1100, 20)], 80), place, num_ctas=8)
    assert answer.counts.wide > 2 and answer.counts.partials > 20


@pytest.mark.interpreted
def test_many_rows_are_not_split(place):
    answer = assert_matches(Step.random(PAGED, 2, [Text(300 + n) for n in range(12)], 260), place, num_ctas=4)
    assert answer.counts[:3] == (12, 0, 0)


def test_a_group_reads_its_shared_blocks_once(place):
    answer = assert_matches(Step.random(PAGED, 3, SHARED, 120), place)
    assert answer.counts.wide > 0 and answer.counts.partials > 0


@pytest.mark.interpreted
def test_the_last_block_of_a_group_may_be_unfinished(place):
    """Rows share a block that one of them has not filled: it does not see the others' tokens."""
    texts = [Text(602), *(Text(n, 1, 38) for n in (597, 593, 600, 601, 592))]  # the last of 38 blocks begins at 592
    answer = assert_matches(Step.random(PAGED, 2, texts, 60), place)
    assert answer.counts.narrow == 0 and answer.counts.wide > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, *in_interpreter(torch.float32)])
def test_an_8_bit_cache_is_read_as_rounded(dtype, place):
    step = Step.random(PAGED, 4, [Text(300), Text(0, 23)], 40).rounded(dtype, torch.float8_e4m3fn)
    answer = run(step, place, dtype, torch.float8_e4m3fn)
    assert relative_error(answer.out, step.reference()) <= attention.tolerance["bf16"]


@pytest.mark.interpreted
def test_extras_are_applied_over_an_8_bit_cache(place):
    step = Step.random(PagedKV(2, 48, 32), 4, [Text(300), Text(0, 23)], 40, extras=EXTRAS)
    step = step.rounded(torch.bfloat16, torch.float8_e4m3fn)
    answer = run(step, place, torch.bfloat16, torch.float8_e4m3fn)
    assert relative_error(answer.out, step.reference()) <= attention.tolerance["bf16"]


FIXED = 128


def alone(step: Step, row: int, first: int) -> Step:
    """Return a step with the same cache and only one row, from its token `first` on."""
    batch, (begin, end) = step.batch, step.batch.starts[row : row + 2]
    new = int(end - begin) - first
    part = RowPart([0] * new, int(batch.lengths[row]) - new, batch.block_tables[row].tolist())
    return replace(step, batch=Batch.of([part], BLOCK), q=step.q[end - new : end])


@pytest.mark.parametrize(
    "spec, dtype, extras",
    [(PagedKV(2, 32, 32, 150), "f32", []), (PAGED, "bf16", []), (PagedKV(1, 48, 16, None, 200), "f32", EXTRAS)],
    ids=["window", "bf16", "chunk-extras"],
)
def test_with_fixed_chunks_a_token_is_bit_equal_in_any_batch(spec, dtype, extras, place):
    """In a batch and alone, as a prompt and as one token, split into parts and folded in one item."""
    step = Step.random(spec, 3, [Text(120, 24), Text(3), Text(255, 2), Text(450)], 80, extras=extras)
    together = run(step, place, TORCH_NAMES[dtype], fixed_chunk=FIXED, num_ctas=4).out
    assert relative_error(together, step.reference()) <= attention.tolerance[dtype]
    for row, num_tokens in enumerate(np.diff(step.batch.starts)):
        for first, num_ctas in {(0, 2), (num_tokens - 1, 64)}:
            some = run(alone(step, row, first), place, TORCH_NAMES[dtype], fixed_chunk=FIXED, num_ctas=num_ctas)
            end = step.batch.starts[row + 1]
            assert np.array_equal(some.out, together[end - len(some.out) : end]), (row, first, num_ctas)


@pytest.mark.interpreted
def test_with_fixed_chunks_long_rows_are_split_and_others_folded(place):
    step = Step.random(PAGED, 2, [Text(480), Text(180), Text(280), Text(20)], 70)
    limits = {"fixed_chunk": FIXED, "num_ctas": 6}
    answer = run(step, place, torch.float32, **limits)
    assert answer.counts.narrow == 0 and 4 < answer.counts.wide < 10
    assert relative_error(answer.out, step.reference()) <= attention.tolerance["f32"]


REAL = {
    "gemma 2": (PagedKV(4, 256, 256, 500), 2, ["softcap"]),
    "gpt-oss": (PagedKV(8, 64, 64, 128), 8, ["sinks"]),
    "alibi": (PagedKV(16, 128, 128), 1, ["slopes"]),
    "chunks": (PagedKV(8, 128, 128, None, 512), 5, []),
    "largest": (PagedKV(2, 512, 512), 8, []),
    "falcon": (PagedKV(1, 64, 64), 71, []),
    "odd": (PagedKV(32, 80, 80), 1, []),
    "latent": (PagedKV(4, 192, 128), 4, EXTRAS),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32], ids=str)
@pytest.mark.parametrize("fixed_chunk", [None, 512])
def test_every_kind_matches_at_the_sizes_of_real_models(fixed_chunk, dtype, name, place):
    """Single tokens, a prompt and a part of one: narrow and wide items, some of them split."""
    spec, group, extras = REAL[name]
    kind = torch.float32 if dtype == torch.float32 else torch.bfloat16
    step = Step.random(spec, group, [Text(1500), Text(300), Text(0, 200), Text(700, 40)], 250, extras=extras)
    step = step.rounded(kind, dtype)
    answer = run(step, place, kind, dtype, fixed_chunk=fixed_chunk, num_ctas=264)
    assert (
        relative_error(answer.out, step.reference()) <= attention.tolerance["f32" if kind == torch.float32 else "bf16"]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32], ids=str)
def test_tiles_fit_in_shared_memory(dtype):
    """A tile of keys and one of values for each stage, and the queries."""
    for head_dim, group, fixed, is_decode in product((16, 64, 80, 128, 192, 256, 512), (1, 71), *[(False, True)] * 2):
        configs = configs_for(head_dim, dtype, group=group, fixed=fixed, is_decode=is_decode)
        for config in (configs.narrow, configs.wide):
            if group > 16 and padded(head_dim) * dtype.itemsize > 1024:
                continue  # the queries alone are larger
            queries = config.block_m * max(dtype.itemsize, 2)
            keys = 2 * config.num_stages * config.block_n * dtype.itemsize
            assert (queries + keys) * padded(head_dim) <= SHARED_MEMORY, (head_dim, group, config)
            assert config.block_m >= group


@pytest.mark.gpu
@pytest.mark.parametrize(
    "texts",
    [
        [Text(600 + n) for n in range(40)],
        [Text(0, 700), Text(300, 64), Text(900)],
        [Text(2100), *(Text(2050 + n, 1 + n % 2, 128) for n in range(40))],
    ],
    ids=["decode", "prompts", "shared"],
)
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_it_matches_at_the_sizes_of_real_models(cache_dtype, texts, place):
    step = Step.random(PagedKV(8, 128, 128), 4, texts, 2000).rounded(torch.bfloat16, cache_dtype)
    answer = run(step, place, torch.bfloat16, cache_dtype, num_ctas=264)
    assert relative_error(answer.out, step.reference()) <= attention.tolerance["bf16"]
