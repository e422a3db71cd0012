"""Drafters that are models, on the device: the text is that without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quire.types.request import SamplingParams
from tests.devices.cuda.models import CudaDriver, small
from tests.devices.interpreted import on_gpu
from tests.engine.model_drafts import PROMPTS, DraftDriver, draft_always, recorded_proposals
from tests.engine.test_eagle3 import head, target
from tests.engine.test_heads import with_head
from tests.models.toys import some_tokens

pytestmark = pytest.mark.device

NUM_TOKENS = 40 if torch.cuda.is_available() else 6  # a GPU drafts once it has measured a step of a captured graph
WAYS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True),
    "seeded": SamplingParams(seed=3, top_k=30, max_tokens=NUM_TOKENS, ignore_eos=True),
}


def answers(driver: CudaDriver) -> dict[str, list[int]]:
    for index, (name, sampling) in enumerate(WAYS.items()):
        driver.submit(name, some_tokens(4 + 5 * index), sampling)
    driver.run()
    return {name: driver.tokens(name) for name in WAYS}


def counts(driver: CudaDriver) -> tuple[dict[str, int], dict[str, int]]:
    counters = driver.core.counters()
    return counters.drafted_tokens, counters.accepted_drafts


def driver_of(place: str, checkpoint: Any, **more: Any) -> CudaDriver:
    return CudaDriver(place, checkpoint, drafters=(), max_step_tokens=32, **more)


def test_the_same_model_drafts_what_the_model_samples(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draft_always(monkeypatch, 2)
    checkpoint = small("llama").checkpoint
    driver = driver_of(place, checkpoint, draft=checkpoint)
    assert answers(driver) == answers(driver_of(place, checkpoint, speculate="off"))
    drafted, accepted = counts(driver)
    assert drafted == accepted and drafted["model"] > 2


@pytest.mark.slow
def test_drafts_of_a_head_are_accepted_with_two_steps_in_flight(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drafts once a plain step was measured; the text is that of a device with one step in flight."""
    draft_always(monkeypatch, 2)
    checkpoint, sampling = with_head("glm4_moe").toy.checkpoint, WAYS["greedy"].updated(max_tokens=10)
    alone = DraftDriver(None, "glm4_moe", checkpoint=checkpoint)
    (text,) = alone.answers(sampling, [PROMPTS[1]])
    driver = driver_of(place, checkpoint, dtype="f32", deterministic=False, num_blocks=16, max_context=128)
    driver.submit("a", PROMPTS[1], sampling)
    driver.run()
    assert driver.tokens("a") == text
    drafted, accepted = counts(driver)
    driver.core._scheduler._speculation._model._drafter._hidden.keep = None  # type: ignore[attr-defined, union-attr]
    driver.submit("without", some_tokens(3), WAYS["greedy"].updated(max_tokens=1, speculate="off"))
    driver.run()
    assert len(driver.tokens("without")) == 1, "its hidden rows are not kept"
    assert 1 < accepted["mtp"] <= sum(count for _, count in alone.accepted) and drafted["mtp"] > accepted["mtp"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["glm4_moe", "qwen3_5", *on_gpu("qwen3_next", "nemotron_h-experts")])
def test_a_head_of_the_model_changes_no_text(case: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of models with states, which go back after a wrong draft."""
    draft_always(monkeypatch, 2)
    checkpoint = with_head(case)[0].checkpoint
    driver = driver_of(place, checkpoint, dtype="f32", deterministic=False)
    assert answers(driver) == answers(driver_of(place, checkpoint, dtype="f32", deterministic=False, speculate="off"))
    assert counts(driver)[0]["mtp"] > 2


def test_an_eagle_head_drafts_as_on_a_cpu(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drafts are those on the stand-in, and the text is that without drafts."""
    draft_always(monkeypatch, 2)
    prompt, sampling = some_tokens(9), WAYS["greedy"]
    exact: dict[str, Any] = {"dtype": "f32", "deterministic": False}
    here = driver_of(place, target().checkpoint, draft=head(), **exact)
    plain = driver_of(place, target().checkpoint, speculate="off", **exact)
    there = DraftDriver(head(), checkpoint=target().checkpoint)
    drafts = {"here": recorded_proposals(here), "there": recorded_proposals(there)}
    for driver in (here, there, plain):
        driver.submit("a", prompt, sampling)
        driver.run()
    assert here.tokens("a") == plain.tokens("a")
    found = {name: {len(each.text): each.draft for each in proposals} for name, proposals in drafts.items()}
    common = found["here"].keys() & found["there"].keys()
    assert len(common) > 1 and all(found["here"][at] == found["there"][at] for at in common)
