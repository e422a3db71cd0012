"""What a row chooses, without chance: greedy, masks, drafts, logprobs, and errors that are a row's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.sampling.filters import draw
from quire.sampling.largest import largest
from quire.sampling.logprobs import logprobs_of, score
from quire.sampling.sampler import MOST_WANTED, Sampler, Task, Top, sample
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


def test_a_bad_word_is_never_completed_wherever_its_beginning_was_said() -> None:
    logits = logits_of(2)[0]
    a, b = (int(token) for token in largest(logits, 2))
    for text, expected in (((5, 6), b), ((6, 5), a), ((5,), a), ((4, 5, 6), b)):
        row = sampler_of(replace(GREEDY, bad_words=((5, 6, a),)), text=text, num_prompt=1)
        assert row.choose(logits, len(text)) == expected, text
    row = sampler_of(replace(GREEDY, bad_words=((a, a),)))
    assert [row.choose(logits, position) for position in range(2, 6)] == [a, b, a, b]  # its own output counts


def test_penalties_remember_the_text_also_when_a_row_joins_again() -> None:
    params = SamplingParams(
        seed=4, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.8, bad_words=((3, 4),)
    )
    rows = logits_of(3, 30)
    row = sampler_of(params, text=(1, 2, 3), num_prompt=3)
    whole = [row.choose(rows[i], 3 + i) for i in range(30)]
    again = sampler_of(params, text=(1, 2, 3, *whole[:17]), num_prompt=3)
    assert [again.choose(rows[i], 3 + i) for i in range(17, 30)] == whole[17:]
    forced = sampler_of(params, text=(1, 2, 3), num_prompt=3)
    forced.hear(whole[:17])
    assert [forced.choose(rows[i], 3 + i) for i in range(17, 30)] == whole[17:]


def test_logits_are_not_changed() -> None:
    logits = logits_of(4)
    kept = logits.copy()
    params = SamplingParams(logit_bias={3: 1.0}, repetition_penalty=2.0, presence_penalty=1.0, top_p=0.5, logprobs=3)
    sample(logits, [Task(sampler_of(params), 0, 2)])
    assert np.array_equal(logits, kept)


def test_a_row_chooses_the_same_in_any_company() -> None:
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
        came = sample(rows, [Task(sampler_of(params), i, 2) for i in range(4)])
        assert [choice.error is None for choice in came] == [True, False, False, True]
        assert isinstance(came[1].error, StepFailed) and not came[1].tokens
    nothing = replace(GREEDY, allowed_token_ids=(4,), bad_words=((4,),))
    (choice,) = sample(rows[:1], [Task(sampler_of(nothing), 0, 2)])
    assert choice.error is not None and "rule out" in choice.error.public


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = logits_of(8, 3)
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    params = SamplingParams(temperature=0.3, seed=1, top_k=3, logit_bias={7: 9.0}, logprobs=5)
    choice = sampler_of(params).run(logits[:1], 2)
    (told,) = choice.logprobs
    assert told.token == choice.tokens[0] and told.logprob == pytest.approx(exact[0, told.token], abs=1e-5)
    assert [token for token, _ in told.top] == np.argsort(-exact[0])[:5].tolist()
    scored = score(logits, [4, 5, 6], 2)
    assert [each.logprob for each in scored] == pytest.approx([exact[0, 4], exact[1, 5], exact[2, 6]], abs=1e-5)
    assert logprobs_of(logits[0], 3, 0).top == () and len(logprobs_of(logits[0], 3, 10**6).top) == VOCAB


def test_the_end_of_chance_falls_on_a_possible_token() -> None:
    x = np.array([0.0, -1.0, -np.inf, -np.inf], np.float32)
    assert draw(x, 0.0) == 0 and draw(x, np.nextafter(1.0, 0.0)) == 1 and draw(x, 1.0) == 1
    assert draw(np.array([-np.inf, 0.0], np.float32), 0.0) == 1


def test_a_draw_from_a_vocabulary_is_the_draw_of_a_running_sum() -> None:
    for size in (1, 129, 8191, 8192, 49_152, 50_001):
        x = np.random.default_rng(size).normal(0.0, 3.0, size).astype(np.float32)
        x -= x.max()
        reached = np.cumsum(np.exp(x), dtype=np.float64)
        for chance in (0.0, 0.1, 0.25, 0.7, 0.999, 1.0 - 2**-53):
            at = draw(x, chance)
            before = reached[at - 1] if at else 0.0
            assert before - 1e-7 <= chance * reached[-1] <= reached[at] + 1e-7


def top_of(logits: np.ndarray, k: int) -> Top:
    """What a device answers."""
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
def test_from_the_likeliest_tokens_a_row_chooses_as_from_all(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, typical_p: float
) -> None:
    cut = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "typical_p": typical_p}
    sampler = sampler_of(SamplingParams(temperature=temperature, seed=seed, **cut))  # type: ignore[arg-type]
    wanted = 1 if temperature == 0.0 else top_k if top_k <= MOST_WANTED else 0
    assert sampler.num_wanted == wanted
    logits = logits_of(seed, 3).round(1)  # with many that are equal
    drafts = tuple(int(row.argmax()) for row in logits[:2])
    if wanted:
        assert sampler.pick(top_of(logits, wanted), 7, drafts) == sampler.run(logits, 7, drafts)


def test_a_device_that_found_a_row_without_a_distribution_fails_that_row_alone() -> None:
    tasks = [Task(sampler_of(GREEDY), row, 2) for row in range(3)]
    top = top_of(logits_of(1, 3), 1)
    top.tokens[1] = -1
    first, second, third = sample(np.zeros((3, VOCAB), np.float32), tasks, top)
    assert (first.tokens, third.tokens) == ((top.tokens[0, 0],), (top.tokens[2, 0],))
    assert isinstance(second.error, StepFailed) and "not a number" in second.error.public


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
def test_what_needs_the_whole_distribution_wants_all_of_it(params: SamplingParams) -> None:
    assert sampler_of(params).num_wanted == 0
