"""Draws against exact probabilities, by chi-square: 20,000 draws at 20,000 positions for each way to sample.

Combinations of filters have 2,000 draws, and 20,000 in slow tests.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from quire.sampling.counter import stream_of, uniform, uniforms
from quire.sampling.sampler import Sampler
from quire.types.request import SamplingParams
from quire.types.step import Join
from tests.sampling.slow_sampler import adjusted, filtered

pytestmark = pytest.mark.pure

NUM_DRAWS = 20_000
FEW_DRAWS = 2_000
RARE = 3.719  # standard deviations: one in ten thousand correct samplers would fail a test; the seeds are fixed
VOCAB = 40
LOGITS = np.random.default_rng(5).normal(0.0, 1.6, VOCAB).astype(np.float32)
PROMPT = (1, 2, 3, 4, 5)

WAYS: dict[str, SamplingParams] = {
    "as it is": SamplingParams(),
    "cold": SamplingParams(temperature=0.6),
    "hot": SamplingParams(temperature=1.7),
    "top-k": SamplingParams(top_k=6),
    "top-k of all": SamplingParams(top_k=VOCAB + 5),
    "top-p": SamplingParams(top_p=0.8),
    "top-p of little": SamplingParams(top_p=0.05),
    "min-p": SamplingParams(min_p=0.1),
    "typical-p": SamplingParams(typical_p=0.7),
    "repetition": SamplingParams(repetition_penalty=1.8),
    "presence": SamplingParams(presence_penalty=1.2),
    "frequency": SamplingParams(frequency_penalty=0.9),
    "bias": SamplingParams(logit_bias={3: 2.0, 8: -1.0, 9: 4.0}),
    "allowed": SamplingParams(allowed_token_ids=(3, 17, 9, 30)),
    "bad words": SamplingParams(bad_words=((int(LOGITS.argmax()),), (7, 8, 12), (6, 13))),
    "top-k and top-p": SamplingParams(temperature=0.8, top_k=12, top_p=0.7),
    "min-p and top-p": SamplingParams(temperature=1.3, min_p=0.05, top_p=0.9),
    "top-k and typical-p": SamplingParams(top_k=20, typical_p=0.8),
    "everything": SamplingParams(
        temperature=0.9,
        top_k=25,
        top_p=0.95,
        min_p=0.02,
        typical_p=0.95,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={2: 1.5},
    ),
}
FILTERS: dict[str, Any] = {"top_k": 8, "top_p": 0.8, "min_p": 0.08, "typical_p": 0.7}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalized": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {2: 1.5, 9: -0.5},
    },
}
SUBSETS = [names for size in range(len(FILTERS) + 1) for names in combinations(FILTERS, size)]
COMBINED = {
    " ".join((change, *names)): SamplingParams(temperature=1.2, **values, **{name: FILTERS[name] for name in names})
    for change, values in CHANGES.items()
    for names in SUBSETS
}
EVERY_WAY = WAYS | COMBINED

each_number_of_draws = pytest.mark.parametrize(
    "num_draws", [FEW_DRAWS, pytest.param(NUM_DRAWS, marks=pytest.mark.slow)]
)


def sampler_of(params: SamplingParams, output: tuple[int, ...] = (), seed: int = 11, sample: int = 0) -> Sampler:
    text = PROMPT + output
    return Sampler(Join("r", 0, replace(params, seed=seed), sample, text, len(PROMPT)), VOCAB)


def check_chi_square(counts: np.ndarray, expected: np.ndarray) -> None:
    """Assert that counts fit the expected ones by a chi-square test. Rare tokens are counted together."""
    assert not counts[expected == 0].any(), "a token of probability 0 was drawn"
    common = expected >= 5
    seen = np.append(counts[common], counts[~common].sum())
    binned = np.append(expected[common], expected[~common].sum())
    distance = ((seen - binned) ** 2 / np.maximum(binned, 1e-9)).sum()
    freedom = max(int((binned > 0).sum()) - 1, 1)
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + RARE * spread**0.5) ** 3  # chi-square quantile by Wilson and Hilferty
    assert distance < limit, (distance, limit)


@pytest.mark.parametrize("way", WAYS)
def test_draws_have_the_exact_probabilities(way: str) -> None:
    check_draws(way, NUM_DRAWS)


@each_number_of_draws
@pytest.mark.parametrize("way", COMBINED)
def test_draws_have_the_exact_probabilities_with_every_set_of_filters(way: str, num_draws: int) -> None:
    check_draws(way, num_draws)


def check_draws(way: str, num_draws: int) -> None:
    params, output = EVERY_WAY[way], (6, 7, 7, 8, 6, 7)
    if way == "bad words":
        output = (6, 7, 7, 8)  # the next token would complete the second word
    exact = filtered(adjusted(LOGITS, params, PROMPT + output, len(PROMPT)), params)
    expected = np.array([exact.get(token, 0.0) for token in range(VOCAB)]) * num_draws
    counts = np.zeros(VOCAB)
    sampler = sampler_of(params, output)
    for position in range(num_draws):
        if uses_history(params):
            sampler = sampler_of(params, output)
        counts[sampler.choose(LOGITS, position)] += 1
    check_chi_square(counts, expected)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FILTERS)
def test_every_filter_of_the_sets_changes_probabilities_alone_and_beside_others(name: str, change: str) -> None:
    """A sampler that ignores it would draw with other probabilities."""
    sets = [COMBINED[" ".join((change, *names))] for names in SUBSETS if name not in names]
    exact = [[exact_after_prompt(each), exact_after_prompt(replace(each, **{name: FILTERS[name]}))] for each in sets]
    changed = [without != with_filter for without, with_filter in exact]
    assert changed[0] and sum(changed) >= 3, changed


def exact_after_prompt(params: SamplingParams) -> dict[int, float]:
    return filtered(adjusted(LOGITS, params, PROMPT, len(PROMPT)), params)


def uses_history(params: SamplingParams) -> bool:
    """Whether a token changes the next distribution. If so, every draw needs a fresh row."""
    penalized = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
    return bool(penalized or params.bad_words)


@each_number_of_draws
@pytest.mark.parametrize("draft", [int(LOGITS.argmax()), 3])
@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_draft_does_not_change_the_distribution_of_its_token(way: str, draft: int, num_draws: int) -> None:
    """A draft is accepted with its own probability; a replacement is drawn from the other tokens."""
    params, output = EVERY_WAY[way], (6, 7, 7, 8) if way == "bad words" else (6, 7, 7)  # the next would complete a word
    exact = filtered(adjusted(LOGITS, params, PROMPT + output, len(PROMPT)), params)
    expected = np.array([exact.get(token, 0.0) for token in range(VOCAB)]) * num_draws
    counts, num_kept, logits = np.zeros(VOCAB), 0, np.stack([LOGITS, LOGITS])
    sampler = sampler_of(params, output)
    for position in range(0, 2 * num_draws, 2):
        if uses_history(params):
            sampler = sampler_of(params, output)
        choice = sampler.run(logits, position, (draft,))
        counts[choice.tokens[0]] += 1
        num_kept += len(choice.tokens) == 2
        assert (choice.tokens[0] == draft) == (len(choice.tokens) == 2)
    check_chi_square(counts, expected)
    assert num_kept == counts[draft]


@each_number_of_draws
@pytest.mark.parametrize("way", EVERY_WAY)
def test_a_token_after_an_accepted_draft_has_the_exact_probabilities(way: str, num_draws: int) -> None:
    """Penalties, bad words and filters hold there as if the draft had been sampled in a step of its own."""
    params, output = EVERY_WAY[way], (6, 7, 7)
    draft = 6 if way == "bad words" else 3  # the next token would complete a word
    first = np.full(VOCAB, -30.0, np.float32)
    first[draft] = 30.0
    exact = filtered(adjusted(LOGITS, params, (*PROMPT, *output, draft), len(PROMPT)), params)
    expected = np.array([exact.get(token, 0.0) for token in range(VOCAB)]) * num_draws
    counts, logits = np.zeros(VOCAB), np.stack([first, LOGITS, LOGITS])
    sampler = sampler_of(params, output)
    for position in range(0, 3 * num_draws, 3):
        if uses_history(params):
            sampler = sampler_of(params, output)
        tokens = sampler.run(logits, position, (draft, 39)).tokens
        assert tokens[0] == draft and len(tokens) == (3 if tokens[1] == 39 else 2)
        counts[tokens[1]] += 1
    check_chi_square(counts, expected)


def test_random_numbers_are_uniform_along_a_text_and_across_seeds_and_samples() -> None:
    along = [uniform(stream_of(1, 0), position) for position in range(NUM_DRAWS)]
    seeds = [uniform(stream_of(seed, 0), 7) for seed in range(NUM_DRAWS)]
    samples = [uniform(stream_of(9, sample), 7) for sample in range(NUM_DRAWS)]
    for numbers in (along, seeds, samples):
        assert min(numbers) >= 0.0 and max(numbers) < 1.0
        even = np.arange(1, NUM_DRAWS + 1) / NUM_DRAWS
        assert np.abs(np.sort(numbers) - even).max() < 2.23 / NUM_DRAWS**0.5  # Kolmogorov-Smirnov, at RARE
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert len({*along, *seeds, *samples}) == 3 * NUM_DRAWS - 2  # (1, 0, 7) and (9, 0, 7) are in two of them


def test_the_chi_square_check_detects_a_slightly_wrong_sampler() -> None:
    expected = np.full(40, NUM_DRAWS / 40)
    wrong = expected.copy()
    wrong[0], wrong[1] = expected[0] + 160, expected[1] - 160
    with pytest.raises(AssertionError):
        check_chi_square(wrong, expected)


def test_vectorized_random_numbers_equal_single_ones() -> None:
    streams = [stream_of(seed, sample) for seed in (0, 1, -5, 2**63) for sample in range(50)]
    positions = [(7919 * n) % 200_000 for n in range(len(streams))]
    many = uniforms(np.array(streams, np.uint64), np.array(positions, np.int32))
    assert many.dtype == np.float64
    assert many.tolist() == [uniform(stream, at) for stream, at in zip(streams, positions, strict=True)]
