"""Rows that begin with the same blocks: their logits do not depend on whether they are grouped (law 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from quire.devices import base
from quire.models.draw import DrawnModel
from quire.ops.batch import Batch, RowPart
from tests.devices.cpu.programs import HAS_NATIVE, LIMITS, VARIANTS, lower, quantized_model
from tests.models.toys import make_toy, some_tokens

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

NUM_SHARED = 10  # blocks of 16 that every row begins with; shared keys are read in stretches of 128
WIDE = replace(LIMITS, max_blocks=16)
PREFIX = some_tokens(16 * NUM_SHARED)
TAILS = [some_tokens(3 + (n * 11) % 37) for n in range(12)]
Groups = Sequence[tuple[int, int, int]]

MODELS = {
    "float": lambda: make_toy("qwen3").draw(),
    "window": lambda: make_toy("mistral-window").draw(),
    "q4_1": lambda: quantized_model("q4_1"),
    "q8_0 heads of 16": lambda: quantized_model("q8_0", 16),
    "latent": lambda: make_toy("deepseek_v2").draw(),
}
CASES = [(name, kv) for name in MODELS for kv in ("f32", "f16", "bf16")] + [("q4_1", "q8_0")]
EACH_CASE = pytest.mark.parametrize("name, kv_dtype", CASES)


@cache
def program(name: str, kv_dtype: str, variant: str = VARIANTS[0] if VARIANTS else "") -> base.Program:
    return lower(MODELS[name](), replace(WIDE, kv_dtype=kv_dtype), variant=variant)


class Texts:
    """The prefix in some of the first 20 blocks, and texts that continue it in their own blocks."""

    shared = (7, 3, 5, 11, 2, 13, 17, 9, 19, 15)

    def __init__(self, of: base.Program) -> None:
        self.program, self.seen = of, [0] * len(TAILS)
        self.run([RowPart(PREFIX, 0, self.shared)], ())

    def run(self, parts: Sequence[RowPart], groups: Groups) -> np.ndarray:
        batch = replace(Batch.of(parts, 16), groups=np.array(groups, np.int32).reshape(-1, 3))
        batch.check(LIMITS.num_blocks, 16)
        logits = self.program.launch(batch).result().logits
        assert logits is not None
        return logits

    def step(self, counts: dict[int, int], num_blocks: int = NUM_SHARED, grouped: bool = True) -> dict[int, np.ndarray]:
        """Compute the next tokens of these texts; return the logits of all of them."""
        parts = []
        for text, count in counts.items():
            tokens = TAILS[text][self.seen[text] : self.seen[text] + count]
            own = range(20 + 4 * text, 24 + 4 * text)
            parts.append(RowPart(tokens, len(PREFIX) + self.seen[text], (*self.shared, *own), len(tokens)))
            self.seen[text] += len(tokens)
        groups = [(0, row, num_blocks) for row in range(len(parts))] if grouped and len(parts) > 1 else []
        logits, at = self.run(parts, groups), np.cumsum([0] + [len(part.token_ids) for part in parts])
        return {text: logits[at[n] : at[n + 1]] for n, text in enumerate(counts)}


def alone(of: base.Program) -> list[np.ndarray]:
    texts = Texts(of)
    return [texts.step({n: len(tail)})[n] for n, tail in enumerate(TAILS)]


@EACH_CASE
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_is_the_same_in_a_group_and_alone(name, kv_dtype, variant):
    expected = alone(program(name, kv_dtype, variant))
    for num_blocks in (NUM_SHARED, 8, 1):  # a group may declare fewer shared blocks than there are
        outputs = Texts(program(name, kv_dtype, variant)).step(dict.fromkeys(range(len(TAILS)), 99), num_blocks)
        for n, logits in outputs.items():
            assert np.array_equal(logits, expected[n]), (num_blocks, n)


@EACH_CASE
def test_any_part_of_a_group_and_any_chunks_give_the_same_logits(name, kv_dtype):
    expected, rng = alone(program(name, kv_dtype)), np.random.default_rng(4)
    texts = Texts(program(name, kv_dtype))
    while any(seen < len(tail) for seen, tail in zip(texts.seen, TAILS, strict=True)):
        left = [n for n, tail in enumerate(TAILS) if texts.seen[n] < len(tail)]
        scheduled = rng.permutation(left)[: rng.integers(1, len(left) + 1)]  # in any order
        before = list(texts.seen)
        for n, logits in texts.step({int(n): int(rng.choice([1, 1, 2, 9])) for n in scheduled}).items():
            assert np.array_equal(logits, expected[n][before[n] : texts.seen[n]])


@EACH_CASE
@pytest.mark.parametrize("grouped", [False, True])
def test_rows_read_what_another_row_writes_in_the_same_step(name, kv_dtype, grouped):
    """One row computes the prefix, and others continue it: keys of all rows are written before any row reads."""
    of = program(name, kv_dtype)
    expected, texts, rows = alone(of), Texts(of), (4, 1, 9)
    texts.run([RowPart(some_tokens(len(PREFIX) + 1)[1:], 0, Texts.shared)], ())  # overwrite the prefix
    parts = [
        RowPart(TAILS[n], len(PREFIX), (*Texts.shared, *range(20 + 4 * n, 24 + 4 * n)), len(TAILS[n])) for n in rows
    ]
    parts.insert(1, RowPart(PREFIX, 0, Texts.shared))
    logits = texts.run(parts, [(0, row, NUM_SHARED) for row in (0, 2, 3)] if grouped else ())
    at = np.cumsum([0] + [part.num_logits for part in parts])
    for row, text in ((0, 4), (2, 1), (3, 9)):
        assert np.array_equal(logits[at[row] : at[row + 1]], expected[text])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_group_gives_the_same_logits_for_any_number_of_threads(num_threads):
    """The number of threads determines how many rows of a group are computed together."""
    model: DrawnModel = quantized_model("q4_1")
    expected = alone(program("q4_1", "f16"))
    texts = Texts(lower(model, WIDE, num_threads=num_threads))
    for n, logits in texts.step(dict.fromkeys(range(len(TAILS)), 1)).items():
        assert np.array_equal(logits, expected[n][:1])


def test_several_groups_and_an_ungrouped_row_share_a_q4_1_step():
    of = program("q4_1", "q8_0")
    expected, texts = alone(of), Texts(of)
    other, blocks = some_tokens(150), range(100, 109)
    texts.run([RowPart(other, 0, (*blocks, 109))], ())
    last = texts.run([RowPart([9], 150, (*blocks, 109))], ())
    parts = [RowPart([9], 150, (*blocks, 109))]
    parts += [RowPart(TAILS[n][:1], len(PREFIX), (*Texts.shared, 20 + 4 * n)) for n in range(4)]
    parts.insert(3, RowPart([9], 150, (*blocks, 110)))
    parts.append(RowPart([9], 150, (*blocks, 111)))
    texts.program.launch(replace(Batch.of(parts[:1], 16), copies=np.array([[109, 110, 6], [109, 111, 6]], np.int32)))
    groups = [(0, 1, 10), (0, 4, 10), (1, 6, 9), (1, 3, 9), (2, 5, 1), (2, 2, 1)]
    logits = texts.run(parts, groups)
    for row, text in ((1, 0), (2, 1), (4, 2), (5, 3)):
        assert np.array_equal(logits[row], expected[text][0])
    for row in (0, 3, 6):
        assert np.array_equal(logits[row], last[0])


def test_a_copied_block_of_a_q8_0_cache_is_continued_like_a_computed_one():
    """Two texts share their first 21 tokens: the scales of tokens are copied with their numbers."""
    of, tokens, rest = program("q4_1", "q8_0"), some_tokens(30), some_tokens(6)
    whole = Batch.of([RowPart(tokens[:21] + rest, 0, [40, 41], num_logits=6)], 16)
    expected = of.launch(whole).result().logits
    of.launch(Batch.of([RowPart(tokens, 0, [5, 2])], 16))
    batch = Batch.of([RowPart(rest, 21, [5, 7], num_logits=6)], 16)
    logits = of.launch(replace(batch, copies=np.array([[2, 9, 16], [9, 7, 5]], np.int32))).result().logits
    assert np.array_equal(logits, expected)


@pytest.mark.parametrize(
    "groups, message",
    [
        ([(0, 0, 1), (0, 3, 1)], "no such row"),
        ([(0, 0, 1), (0, -1, 1)], "no such row"),
        ([(0, 0, 1), (0, 1, 1), (1, 0, 1)], "row twice"),
        ([(0, 0, 3), (0, 1, 3)], "more blocks than a row has"),
        ([(0, 0, 0), (0, 1, 0)], "more blocks than a row has"),
        ([(0, 0, 2), (0, 1, 1)], "same number of blocks"),
        ([(0, 0, 2), (0, 1, 2)], "begin with the same blocks"),
        ([(0, 2, 1), (0, 1, 1)], "begin with the same blocks"),
    ],
)
def test_an_invalid_group_is_refused_by_q4_1(groups, message):
    parts = [RowPart([1], 20, (4, 6)), RowPart([2], 20, (4, 5)), RowPart([3], 2, (8, 8))]
    batch = replace(Batch.of(parts, 16), groups=np.array(groups, np.int32))
    with pytest.raises(ValueError, match=message):
        program("q4_1", "f16").launch(batch)
    with pytest.raises(AssertionError):
        batch.check(LIMITS.num_blocks, 16)


def test_a_q8_0_cache_takes_half_of_an_f16_one_and_refuses_heads_that_are_not_whole_blocks():
    sizes = {kv: program("q4_1", kv).num_bytes for kv in ("f32", "f16", "q8_0")}
    assert (sizes["f32"] - sizes["f16"]) * 30 == (sizes["f16"] - sizes["q8_0"]) * 64
    with pytest.raises(ValueError, match="no whole blocks of 32"):
        lower(quantized_model("q4_1", 12), replace(LIMITS, kv_dtype="q8_0"))
