"""What a row samples apart from its statistics: greedy, masks, drafts, logprobs, and errors of one row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.sampling.filters import sample_index
from quire.sampling.largest import largest
from quire.sampling.logprobs import logprobs_of, score
from quire.sampling.mask import WORD_BITS, blank
from quire.sampling.sampler import MAX_TOP, Sampler, Task, Top, sample
from quire.types.errors import StepFailed
from quire.types.request import SamplingParams
from quire.types.step import Join

pytestmark = pytest.mark.pure

VOCAB = 300
GREEDY = SamplingParams(temperature=0.0)


def logits_of(seed: int, num_rows: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 2.0, (num_rows, VOCAB)).astype(np.float32)


def sampler_of(params: SamplingParams, text: tuple[int, ...] = (1, 2), num_prompt: int = 2, **join: object) -> Sampler:
    return Sampler(Join("r", 0, params, 0, text, num_prompt, **join), VOCAB)  # type: ignore[arg-type]


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=2000), st.integers(1, 2100))
def test_the_largest_are_those_of_a_stable_sort(numbers: list[float], k: int) -> None:
    x = np.array(numbers, np.float32)
    assert largest(x, k).tolist() == np.argsort(-x, kind="stable")[:k].tolist()


@pytest.mark.parametrize("k", [1, 7, 40, 90, 5000, 49_151, 49_152])
def test_the_largest_of_a_vocabulary(k: int) -> None:
    x = np.random.default_rng(k).normal(size=49_152).astype(np.float32).round(2)  # many are equal
    assert np.array_equal(largest(x, k), np.argsort(-x, kind="stable")[:k])


def test_greedy_takes_the_likeliest_and_the_first_of_equals() -> None:
    logits = logits_of(0)[0]
    assert sampler_of(GREEDY).choose(logits, 2) == logits.argmax()
    assert sampler_of(GREEDY).choose(np.zeros(VOCAB, np.float32), 2) == 0
    assert sampler_of(SamplingParams(top_k=1)).choose(logits, 2) == logits.argmax()
    assert sampler_of(SamplingParams(temperature=1e-30)).choose(logits, 2) == logits.argmax()


def test_stop_tokens_cannot_be_chosen_before_min_tokens() -> None:
    logits = logits_of(1)[0]
    best, second = largest(logits, 2)
    row = sampler_of(replace(GREEDY, min_tokens=3), stops=frozenset({int(best)}))
    assert [row.choose(logits, position) for position in range(2, 7)] == [second] * 3 + [best] * 2


def test_a_bad_word_is_never_completed_whether_it_begins_in_prompt_or_output() -> None:
    logits = logits_of(2)[0]
    a, b = (int(token) for token in largest(logits, 2))
    for text, expected in (((5, 6), b), ((6, 5), a), ((5,), a), ((4, 5, 6), b)):
        row = sampler_of(replace(GREEDY, bad_words=((5, 6, a),)), text=text, num_prompt=1)
        assert row.choose(logits, len(text)) == expected, text
    row = sampler_of(replace(GREEDY, bad_words=((a, a),)))
    assert [row.choose(logits, position) for position in range(2, 6)] == [a, b, a, b]  # its own output counts


def test_penalties_count_the_whole_text_after_a_row_joins_again() -> None:
    params = SamplingParams(
        seed=4, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.8, bad_words=((3, 4),)
    )
    rows = logits_of(3, 30)
    row = sampler_of(params, text=(1, 2, 3), num_prompt=3)
    whole = [row.choose(rows[i], 3 + i) for i in range(30)]
    again = sampler_of(params, text=(1, 2, 3, *whole[:17]), num_prompt=3)
    assert [again.choose(rows[i], 3 + i) for i in range(17, 30)] == whole[17:]
    forced = sampler_of(params, text=(1, 2, 3), num_prompt=3)
    forced.add_tokens(whole[:17])
    assert [forced.choose(rows[i], 3 + i) for i in range(17, 30)] == whole[17:]


def test_logits_are_not_changed() -> None:
    logits = logits_of(4)
    kept = logits.copy()
    params = SamplingParams(logit_bias={3: 1.0}, repetition_penalty=2.0, presence_penalty=1.0, top_p=0.5, logprobs=3)
    sample(logits, [Task(sampler_of(params), 0, 2)])
    assert np.array_equal(logits, kept)


def test_a_row_samples_the_same_tokens_in_any_batch() -> None:
    ways = [GREEDY, SamplingParams(seed=1), SamplingParams(seed=2, top_k=9), SamplingParams(seed=2, top_p=0.4), GREEDY]
    rows = logits_of(5, len(ways))
    alone = [sample(rows[i : i + 1], [Task(sampler_of(way), 0, 7)])[0] for i, way in enumerate(ways)]
    assert sample(rows, [Task(sampler_of(way), i, 7) for i, way in enumerate(ways)]) == alone
    order = [3, 0, 4, 1, 2]
    shuffled = sample(rows, [Task(sampler_of(ways[i]), i, 7) for i in order])
    assert shuffled == [alone[i] for i in order]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3), SamplingParams(seed=3, repetition_penalty=1.5)])
def test_drafts_never_change_the_text(params: SamplingParams) -> None:
    rows = logits_of(6, 5)
    plain = sampler_of(params)
    text = [plain.choose(rows[i], 2 + i) for i in range(5)]
    for num_right in range(5):
        drafts = tuple(text[:num_right]) + tuple((token + 1) % VOCAB for token in text[num_right:4])
        choice = sampler_of(params).run(rows, 2, drafts)
        assert choice.tokens == tuple(text[: num_right + 1])


def test_a_bad_row_fails_alone() -> None:
    rows = logits_of(7, 4)
    rows[1, 5] = np.nan
    rows[2, 9] = np.inf
    for params in (GREEDY, SamplingParams(seed=1)):
        results = sample(rows, [Task(sampler_of(params), i, 2) for i in range(4)])
        assert [each.error is None for each in results] == [True, False, False, True]
        assert isinstance(results[1].error, StepFailed) and not results[1].tokens
    nothing = replace(GREEDY, allowed_token_ids=(4,), bad_words=((4,),))
    (choice,) = sample(rows[:1], [Task(sampler_of(nothing), 0, 2)])
    assert choice.error is not None and "rule out" in choice.error.public


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = logits_of(8, 3)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    params = SamplingParams(temperature=0.3, seed=1, top_k=3, logit_bias={7: 9.0}, logprobs=5)
    choice = sampler_of(params).run(logits[:1], 2)
    (first,) = choice.logprobs
    assert first.token == choice.tokens[0] and first.logprob == pytest.approx(exact[0, first.token], abs=1e-5)
    assert [token for token, _ in first.top] == np.argsort(-exact[0])[:5].tolist()
    scored = score(logits, [4, 5, 6], 2)
    assert [each.logprob for each in scored] == pytest.approx([exact[0, 4], exact[1, 5], exact[2, 6]], abs=1e-5)
    assert logprobs_of(logits[0], 3, 0).top == () and len(logprobs_of(logits[0], 3, 10**6).top) == VOCAB


def test_the_largest_chance_selects_a_possible_token() -> None:
    x = np.array([0.0, -1.0, -np.inf, -np.inf], np.float32)
    assert sample_index(x, 0.0) == 0 and sample_index(x, np.nextafter(1.0, 0.0)) == 1 and sample_index(x, 1.0) == 1
    assert sample_index(np.array([-np.inf, 0.0], np.float32), 0.0) == 1


def test_a_draw_in_runs_equals_a_draw_by_running_sum() -> None:
    for size in (1, 129, 8191, 8192, 49_152, 50_001):
        x = np.random.default_rng(size).normal(0.0, 3.0, size).astype(np.float32)
        x -= x.max()
        reached = np.cumsum(np.exp(x), dtype=np.float64)
        for chance in (0.0, 0.1, 0.25, 0.7, 0.999, 1.0 - 2**-53):
            at = sample_index(x, chance)
            before = reached[at - 1] if at else 0.0
            assert before - 1e-7 <= chance * reached[-1] <= reached[at] + 1e-7


def top_of(logits: np.ndarray, k: int) -> Top:
    """What a device returns."""
    order = np.stack([largest(row, k) for row in logits]).astype(np.int32)
    return Top(order, np.take_along_axis(logits, order, 1))


@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    st.integers(1, VOCAB),
    st.sampled_from([0.2, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.sampled_from([0.5, 1.0]),
)
def test_sampling_from_the_likeliest_tokens_equals_sampling_from_all(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float
) -> None:
    cut = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "typical_p": typical_p}
    sampler = sampler_of(SamplingParams(temperature=temperature, seed=seed, **cut))  # type: ignore[arg-type]
    expected = 1 if temperature == 0.0 else top_k if top_k <= MAX_TOP else 0
    assert sampler.num_top == expected
    logits = logits_of(seed, 3).round(1)  # with many ties
    drafts = tuple(int(row.argmax()) for row in logits[:2])
    if expected:
        assert sampler.pick(top_of(logits, expected), 7, drafts) == sampler.run(logits, 7, drafts)


def test_a_row_that_the_device_marks_invalid_fails_alone() -> None:
    tasks = [Task(sampler_of(GREEDY), row, 2) for row in range(3)]
    top = top_of(logits_of(1, 3), 1)
    top.tokens[1] = -1
    first, second, third = sample(np.zeros((3, VOCAB), np.float32), tasks, top)
    assert (first.tokens, third.tokens) == ((top.tokens[0, 0],), (top.tokens[2, 0],))
    assert isinstance(second.error, StepFailed) and "not valid numbers" in second.error.public


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=0.0, logprobs=0),
        SamplingParams(top_k=5, repetition_penalty=1.2),
        SamplingParams(top_k=5, logit_bias={3: 1.0}),
    ],
)
def test_parameters_that_need_the_whole_distribution_use_no_top_tokens(params: SamplingParams) -> None:
    assert sampler_of(params).num_top == 0


# ── grammar masks ──

WAYS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(seed=1),
    "filters": SamplingParams(seed=1, temperature=2.0, top_k=9, top_p=0.7, min_p=0.01, typical_p=0.9),
    "bias": SamplingParams(seed=1, logit_bias=dict.fromkeys(range(0, VOCAB, 2), 50.0)),
    "penalties": SamplingParams(seed=1, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=1.0),
}


def mask_of(*rows: set[int]) -> np.ndarray:
    bits = blank(len(rows), VOCAB)
    for row, tokens in enumerate(rows):
        for token in tokens:
            bits[row, token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS)
    return bits


@pytest.mark.parametrize("way", WAYS)
def test_a_token_that_the_mask_rules_out_is_never_chosen(way: str) -> None:
    odd = set(range(1, VOCAB, 2))
    sampler = sampler_of(WAYS[way])
    assert {sampler.choose(logits_of(seed)[0], 2 + seed, mask_of(odd)[0]) for seed in range(200)} <= odd
    one = mask_of({299})[0]
    assert all(sampler.choose(logits_of(seed)[0], 300 + seed, one) == 299 for seed in range(5))


def test_a_mask_that_allows_every_token_changes_nothing() -> None:
    everything = mask_of(set(range(VOCAB)))[0]
    free, held = sampler_of(SamplingParams(seed=4)), sampler_of(SamplingParams(seed=4))
    for seed in range(50):
        logits = logits_of(seed)[0]
        assert free.choose(logits, seed) == held.choose(logits, seed, everything)


def test_a_mask_combines_with_allowed_tokens_and_the_row_fails_if_none_is_left() -> None:
    sampler = sampler_of(SamplingParams(seed=1, allowed_token_ids=(3, 4, 5)))
    assert all(sampler.choose(logits_of(seed)[0], seed, mask_of({2, 5})[0]) == 5 for seed in range(5))
    for tokens in ({2, 6}, set()):
        choice = sampler.run(logits_of(1), 2, (), mask_of(tokens))
        assert isinstance(choice.error, StepFailed) and "No token is left" in choice.error.public


def test_stop_tokens_are_sampled_before_min_tokens_only_if_nothing_else_is_allowed() -> None:
    sampler = sampler_of(SamplingParams(seed=1, min_tokens=50), stops=frozenset({7, 8}))
    assert all(sampler.choose(logits_of(seed)[0], 3, mask_of({7, 8, 9})[0]) == 9 for seed in range(5))
    assert sampler.choose(logits_of(1)[0], 3, mask_of({7})[0]) == 7


def test_rows_with_and_without_masks_share_a_step() -> None:
    logits = logits_of(8, 4)
    free = [int(row.argmax()) for row in logits]
    mask = mask_of({1, 2})
    tasks = [Task(sampler_of(GREEDY), row, 2, (), mask if row == 2 else None) for row in range(4)]
    tokens = [each.tokens[0] for each in sample(logits, tasks)]
    assert tokens[:2] + tokens[3:] == free[:2] + free[3:] and tokens[2] == 1 + int(logits[2, 2] > logits[2, 1])
