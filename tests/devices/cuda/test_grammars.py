"""Grammars over a program that samples on the device: masks arrive while it computes, and its tokens obey them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

pytest.importorskip("llguidance")

from quire.scheduler.plain_step import PlainStep
from quire.scheduler.speculation import DraftCandidate, Speculation
from quire.types.request import Constraint, ConstraintKind, FinishReason, SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.devices.cuda.models import CudaDriver, small
from tests.engine.known_drafts import KnownDrafts
from tests.engine.spelled import save_spelled
from tests.models.toys import some_tokens

pytestmark = pytest.mark.device

FORM = r"(left|right)-[0-9]{2}[a-f]"
ENDS = (129, 130)
WAYS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=12),
    "seeded": SamplingParams(seed=3, temperature=1.3, top_k=50, top_p=0.95, max_tokens=12),
    "penalties": SamplingParams(seed=7, repetition_penalty=1.3, max_tokens=12),  # sampled on the host
}


def text_of(tokens: list[int]) -> str:
    return "".join(chr(token) for token in tokens if token < 128)


def test_constrained_outputs_match_their_grammar_beside_an_unconstrained_one(place, tmp_path):
    driver = CudaDriver(place, open_checkpoint(save_spelled(small("qwen3").torch_model, tmp_path)))
    form = Constraint(ConstraintKind.REGEX, FORM)
    for name, way in WAYS.items():
        driver.submit(name, some_tokens(5), way, eos_token_ids=ENDS, constraint=form)
    driver.submit("free", some_tokens(5), WAYS["greedy"])
    driver.run()
    for name in WAYS:
        assert re.fullmatch(FORM, text_of(driver.tokens(name))) and driver.records[name, 0].finish is FinishReason.STOP
    assert not re.match(FORM, text_of(driver.tokens("free"))), "without a mask the output differs"


def test_wrong_drafts_change_no_constrained_output_in_deterministic_mode(place, tmp_path, monkeypatch):
    def choose_all(self: Speculation, candidates: list[DraftCandidate], step: PlainStep) -> list[int]:
        return [len(each.gains) for each in candidates]

    monkeypatch.setattr(Speculation, "_best_counts", choose_all)
    checkpoint, prompt = open_checkpoint(save_spelled(small("qwen3").torch_model, tmp_path)), some_tokens(5)
    form = Constraint(ConstraintKind.REGEX, FORM)

    def outputs(driver: CudaDriver) -> dict[str, list[int]]:
        driver.submit("form", prompt, replace(WAYS["greedy"], max_tokens=2), eos_token_ids=ENDS, constraint=form)
        driver.submit("free", prompt, WAYS["greedy"])
        driver.run()  # drafts need a measured step, and with the grammar compiled all requests start in one step
        for name, way in WAYS.items():
            driver.submit(name, prompt, way, eos_token_ids=ENDS, constraint=form)
        driver.run()
        return {name: driver.tokens(name) for name in WAYS}

    without = outputs(CudaDriver(place, checkpoint, speculate="off"))
    known = KnownDrafts({name: (prompt, tokens) for name, tokens in without.items()}, wrong_every=3)
    driver = CudaDriver(place, checkpoint, drafters=[known])
    found, counters = outputs(driver), driver.core.counters()
    assert found == without and all(re.fullmatch(FORM, text_of(tokens)) for tokens in found.values())
    assert 0 < counters.accepted_drafts["known"] < counters.drafted_tokens["known"]
