"""A small model that drafts: the text is that without it, and the drafts are those of the small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.config import BadSetting
from quire.engine.messages import Cancel
from quire.types.request import CacheKey, Constraint, ConstraintKind, FinishReason, SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.engine.model_drafts import (
    PROMPTS,
    DraftDriver,
    accepted_by_transformers,
    draft_always,
    perturbed,
    plain_answers,
)
from tests.models.toys import VOCAB, make_toy, toy_of

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 3, "temperature": 0.8},
    "filtered": {"seed": 3, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "penalized": {"seed": 3, "temperature": 0.5, "repetition_penalty": 1.2},
    "several samples": {"seed": 3, "temperature": 0.8, "n": 2},
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("always", "each_depth_and_native")
def test_the_text_is_that_without_a_draft_model(way: str) -> None:
    sampling = SamplingParams(max_tokens=24, ignore_eos=True, **WAYS[way])
    driver = DraftDriver(perturbed(make_toy("llama"), 0.05).checkpoint)
    assert driver.answers(sampling) == plain_answers(sampling)
    assert driver.has_accepted_and_rejected


@pytest.mark.parametrize("way", ["greedy", "seeded"])
@pytest.mark.usefixtures("always", "each_depth")
def test_every_draft_of_the_same_model_is_accepted(way: str) -> None:
    driver = DraftDriver(make_toy("llama").checkpoint)
    driver.answers(SamplingParams(max_tokens=24, ignore_eos=True, **WAYS[way]))
    assert len(driver.accepted) > 10 and all(drafted == accepted for drafted, accepted in driver.accepted)


@pytest.mark.usefixtures("always", "each_depth")
def test_unseeded_drafts_have_the_random_numbers_of_the_text() -> None:
    driver = DraftDriver(make_toy("llama").checkpoint)
    driver.answers(SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0))
    assert driver.accepted and all(drafted == accepted for drafted, accepted in driver.accepted)


@pytest.mark.parametrize("prompt", [PROMPTS[1], *(pytest.param(each, marks=pytest.mark.slow) for each in PROMPTS[::2])])
def test_as_many_drafts_are_accepted_as_by_transformers(prompt: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In every step. Ours drafts from the first token of the answer on, so that is the end of transformers' prompt."""
    draft_always(monkeypatch, 4)
    toy = make_toy("llama")
    assistant = perturbed(toy, 0.08)
    driver = DraftDriver(assistant.checkpoint).warm_up()
    (answer,) = driver.answers(GREEDY, [prompt])
    config = assistant.torch_model.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = 4, "constant"
    config.assistant_confidence_threshold = 0.0
    given, model = [*prompt, answer[0]], assistant.torch_model
    theirs = accepted_by_transformers(toy, given, 32, monkeypatch, assistant_model=model)[: len(driver.accepted)]
    # At the end of our answer there is room for fewer drafts.
    limited = [min(num_drafts, count) for (num_drafts, _), count in zip(driver.accepted, theirs, strict=True)]
    ours = [accepted for _, accepted in driver.accepted]
    assert ours == limited and 0 < sum(ours) < 4 * len(ours)


@pytest.mark.usefixtures("always", "each_depth_and_native")
def test_a_preempted_text_is_drafted_again() -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    settings = {"num_blocks": 10, "max_context": 128, "max_rows": 4}
    driver = DraftDriver(make_toy("llama").checkpoint, **settings)
    assert driver.answers(sampling) == plain_answers(sampling, **settings)
    assert driver.core.counters().num_preemptions > 0
    assert all(drafted == accepted for drafted, accepted in driver.accepted)


@pytest.mark.usefixtures("always", "each_depth_and_native")
def test_more_texts_than_the_draft_model_has_room_for() -> None:
    """Its blocks hold two texts: the others are drafted for when these have ended."""
    prompts = [[n, *range(20, 50)] for n in range(6)]
    driver = DraftDriver(make_toy("llama").checkpoint, num_blocks=40, max_context=96)
    drafter: Any = driver.core._scheduler._speculation._model._drafter
    assert drafter._cache.num_blocks == 12
    assert driver.answers(GREEDY, prompts) == plain_answers(GREEDY, prompts=prompts, max_context=96)
    drafter._cache.check()
    assert not drafter._followed and len(drafter._free_rows) == 32


@pytest.mark.usefixtures("always")
def test_the_next_turn_reads_only_what_is_new() -> None:
    driver = DraftDriver(make_toy("llama").checkpoint)
    prompt = list(range(20, 61))
    (first,) = driver.answers(GREEDY, [prompt])
    drafter: Any = driver.core._scheduler._speculation._model._drafter
    read: list[int] = []
    run = drafter._run
    drafter._run = lambda readings, count: (read.extend(len(each.tokens) for each in readings), run(readings, count))[1]
    driver.submit("next", [*prompt, *first, 7, 8, 9], GREEDY)
    driver.submit("other", [*prompt, *first, 7, 8, 9], GREEDY, cache=CacheKey(salt="tenant"))
    driver.run()
    (plain,) = plain_answers(GREEDY, prompts=[[*prompt, *first, 7, 8, 9]])
    assert driver.tokens("next") == driver.tokens("other") == plain and driver.records["next", 0].num_hit > 60
    assert max(read) > 60 and sorted(read)[-2] < 16, "of the other tenant all, of the next turn the last block and news"


@pytest.mark.usefixtures("always", "each_depth_and_native")
def test_a_constrained_text_is_that_without_a_draft_model(toy_folder: Path) -> None:
    """A constrained text awaits each result, so no other step is ever in flight with it."""
    pytest.importorskip("llguidance")
    form = Constraint(ConstraintKind.REGEX, r'\{"name": "[a-z]{1,12}", "(left|right)": [1-9]\d{0,3}\}')
    sampling, words = SamplingParams(seed=9, max_tokens=48), {"eos_token_ids": (129, 130), "constraint": form}
    target = open_checkpoint(toy_folder)
    driver = DraftDriver(make_toy("llama").checkpoint, checkpoint=target)
    driver.answers(sampling, PROMPTS[:1], **words)  # compiles the grammar, so that all requests start in one step
    driver.accepted.clear()
    with_drafts, without = (
        [[token for token in answer if token < 128] for answer in answers]  # the last draft may be the end
        for answers in (driver.answers(sampling, **words), plain_answers(sampling, checkpoint=target, request=words))
    )
    assert with_drafts == without and driver.has_accepted_and_rejected


@pytest.mark.usefixtures("always", "stand_in_and_native")
def test_a_hybrid_model_goes_back_behind_rejected_drafts() -> None:
    settings = {"check_states": True, "num_states": 24}
    driver = DraftDriver(perturbed(make_toy("llama"), 0.0).checkpoint, "qwen3_next", **settings)
    assert driver.answers(GREEDY) == plain_answers(GREEDY, "qwen3_next", **settings)
    assert driver.accepted


@pytest.mark.usefixtures("always", "each_depth")
def test_a_cancelled_text_leaves_nothing_behind() -> None:
    driver = DraftDriver(make_toy("llama").checkpoint)
    driver.submit("a", PROMPTS[1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    for _ in range(6):
        driver.step()
    drafter: Any = driver.core._scheduler._speculation._model._drafter
    assert drafter._followed
    driver.handle(Cancel("a", FinishReason.CANCELLED))
    assert not drafter._followed
    drafter._cache.check()


def test_another_vocabulary_is_refused_with_both_sizes() -> None:
    other = toy_of("LlamaForCausalLM", {"vocab_size": 99}, seed=1)
    with pytest.raises(BadSetting, match=f"99 tokens.*has {VOCAB}"):
        DraftDriver(other.checkpoint)


def test_recurrent_layers_are_refused() -> None:
    with pytest.raises(BadSetting, match="recurrent layers"):
        DraftDriver(make_toy("qwen3_next").checkpoint)


def test_a_draft_model_that_costs_as_much_as_it_saves_is_tried_and_left() -> None:
    """Nothing is forced: the first drafts are made to learn their cost."""
    driver = DraftDriver(make_toy("llama").checkpoint)
    driver.answers(SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True), PROMPTS[:1])
    assert driver.accepted and all(drafted == accepted for drafted, accepted in driver.accepted)
