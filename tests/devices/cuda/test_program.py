"""A lowered model: its logits against transformers, and every kind of step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.devices._triton.attention_work import WorkViews, plan_work, work_size
from quire.models.draw import draw
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from quire.sampling.mask import blank
from tests.devices.cuda.models import KINDS, Texts, draws_of, kv_tensor, lowered, random_llama, small
from tests.models.toys import BLOCK, VOCAB, some_tokens

pytestmark = pytest.mark.device

F32_ERROR, BF16_ERROR = 1e-4, 5e-2  # of logits, relative to the largest
PROMPT = some_tokens(21)


@pytest.mark.parametrize("name", KINDS)
def test_logits_in_float32_are_those_of_transformers(name, place):
    """A prompt, then its last tokens one by one beside another row."""
    texts, exact = Texts(lowered(small(name).draw(), place, dtype="f32")), small(name).expected_logits(PROMPT)
    assert relative_error(texts.step({0: PROMPT[:18]}, 18), exact[:18]) <= F32_ERROR
    assert relative_error(texts.step({1: PROMPT[:3], 0: PROMPT[18:19]}), exact[[2, 18]]) <= F32_ERROR
    assert relative_error(texts.step({1: PROMPT[3:4], 0: PROMPT[19:20]}), exact[[3, 19]]) <= F32_ERROR


def test_a_gguf_file_of_the_same_model_has_the_same_logits(place):
    toy = small("llama-tied-biased")
    logits = [
        Texts(lowered(toy.draw(kind), place, dtype="f32")).step({0: PROMPT[:9]}) for kind in ("gguf", "safetensors")
    ]
    assert relative_error(*logits) <= F32_ERROR


@pytest.mark.parametrize("name", ["llama-tied-biased", "qwen3"])
def test_logits_in_bfloat16_are_close_to_those_of_transformers(name, place):
    """Few tokens are streamed, many are multiplied by the library."""
    program, exact = lowered(small(name).draw(), place), small(name).expected_logits(PROMPT)
    assert relative_error(Texts(program).step({0: PROMPT}, 21), exact) <= BF16_ERROR
    texts = Texts(program)
    assert relative_error(texts.step({0: PROMPT[:9]}, 9), exact[:9]) <= BF16_ERROR
    assert relative_error(texts.step({0: PROMPT[9:10]}), exact[9:10]) <= BF16_ERROR


@pytest.mark.parametrize("name, tolerance", [("steady", 0.15), ("llama-tied-biased", 0.2)])
def test_fp8_is_near_bfloat16(name, tolerance, place):
    """Matrices, tokens and the cache in FP8. Errors are root mean squares, relative to that of logits.

    Three mantissa bits give errors of 2.6 %; the matrices of toys amplify errors, those of "steady" do not.
    """
    checkpoint = random_llama(128, num_layers=2, vocab=VOCAB) if name == "steady" else small(name).checkpoint
    plain = Texts(lowered(draw(checkpoint), place))
    coarse = Texts(lowered(draw(checkpoint), place, quantize="fp8", kv_dtype="f8_e4m3"))
    for chunk in (PROMPT[:20], PROMPT[20:]):
        here, there = coarse.step({0: chunk}), plain.step({0: chunk})
        assert 0 < np.linalg.norm(here - there) / np.linalg.norm(there) <= tolerance


def test_a_step_without_logits_writes_its_keys(place):
    program = lowered(small("qwen3").draw(), place, dtype="f32")
    texts, whole = Texts(program), Texts(program)
    assert texts.step({0: PROMPT[:9]}, 0).shape == (0, VOCAB)
    assert relative_error(texts.step({0: PROMPT[9:]}), whole.step({0: PROMPT})) <= F32_ERROR


def test_blocks_are_copied_before_anything_else(place):
    """Row 1 continues from a copy of 5 tokens of row 0's block."""
    program = lowered(small("qwen3").draw(), place, dtype="f32")
    texts = Texts(program)
    texts.step({0: PROMPT[:9]})
    texts.lengths[1] = 5
    copies = np.array([(texts.blocks(0)[0], texts.blocks(1)[0], 5)], np.int32)
    logits = texts.step({1: PROMPT[5:7]}, 2, copies=copies)
    assert relative_error(logits, small("qwen3").expected_logits(PROMPT[:7])[5:]) <= F32_ERROR
    moved, kept = (kv_tensor(program.caches)[:, :, texts.blocks(row)[0]] for row in (1, 0))
    assert torch.equal(moved[..., :5, :], kept[..., :5, :]) and not torch.equal(moved[..., 7:9, :], kept[..., 7:9, :])


def test_rows_read_what_another_row_writes_in_the_same_step(place):
    """Row 2 computes a prefix of two blocks; rows 0 and 1 continue from it, one with a single token."""
    program = lowered(small("qwen3").draw(), place, dtype="f32")
    prefix, tails, shared = some_tokens(2 * BLOCK), (PROMPT[:3], [7]), [9, 4]
    parts = [RowPart(tail, 2 * BLOCK, [*shared, 20 + row]) for row, tail in enumerate(tails)]
    logits = program.launch(Batch.of([*parts, RowPart(prefix, 0, shared)], BLOCK)).result().logits
    for row, tail in enumerate(tails):
        assert relative_error(logits[row], small("qwen3").expected_logits([*prefix, *tail])[-1]) <= F32_ERROR


def test_rows_that_share_blocks_have_the_same_logits_with_and_without_groups(place):
    """Enough rows that their prefix is read once. The cache holds random numbers."""
    program, rows, depth = lowered(small("qwen3").draw(), place, dtype="f32"), 10, 15
    kv_tensor(program.caches).normal_(generator=torch.Generator(place).manual_seed(0))
    parts = [RowPart([5 + row], depth * BLOCK, [*range(depth), depth + row]) for row in range(rows)]
    alone = Batch.of(parts, BLOCK)
    together = replace(alone, groups=np.array([(0, row, depth) for row in range(rows)], np.int32))
    (limits,) = program.work.attention.values()
    counts = plan_work(together, limits, WorkViews.of(np.zeros(work_size(limits), np.int32), limits))
    assert counts.wide > 0
    grouped, ungrouped = (program.launch(batch).result().logits for batch in (together, alone))
    assert relative_error(grouped, ungrouped) <= F32_ERROR


def test_the_device_samples_and_continues_with_its_own_tokens(place):
    """One of the rows is sampled on the host, and only its logits are returned."""
    program = lowered(small("qwen3").draw(), place, dtype="f32")
    plain, texts = Texts(program), Texts(program)
    chunks = {row: PROMPT[row : row + 4] for row in range(3)}
    logits = plain.step(chunks)
    first = program.launch(texts.batch(chunks, draws=draws_of([7, -1, 2]))).result()
    best = logits.argmax(1).tolist()
    assert first.tokens is not None and first.tokens.tolist() == [best[0], -1, best[2]]
    assert first.logits is not None and np.array_equal(first.logits, logits[1:2])
    logits = plain.step({row: [best[row]] for row in range(3)})
    after = program.launch(texts.batch({0: [-8], 1: [best[1]], 2: [-3]}, draws=draws_of([7, 1, 2], temperature=1e-6)))
    assert after.result().tokens is not None and after.result().tokens.tolist() == logits.argmax(1).tolist()


def test_masks_arrive_after_the_launch(place):
    program = lowered(small("qwen3").draw(), place, dtype="f32")
    chunks = {row: PROMPT[row : row + 3] for row in range(3)}
    logits = Texts(program).step(chunks)
    allowed = [3, 40, 130]
    bits = blank(2, VOCAB)
    for token in allowed:
        bits[0, token // 32] |= np.uint32(1 << token % 32)
    pending = program.launch(Texts(program).batch(chunks, draws=draws_of([0, 1, 2], [True, False, True])))
    pending.mask(bits)
    tokens = pending.result().tokens
    assert tokens is not None
    assert tokens.tolist() == [
        allowed[logits[0, allowed].argmax()],
        logits[1].argmax(),
        -1,
    ]  # the last mask allows nothing
