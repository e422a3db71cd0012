"""With drafts the text is the same as without, in every way of sampling, by the real model on the native device."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.bench.load.draft_loads import DRAFT_LOADS
from quire.engine.llm import LLM
from quire.types.request import Constraint, ConstraintKind, GenerateRequest, SamplingParams
from tests.devices.cpu.programs import HAS_NATIVE

pytestmark = [
    pytest.mark.device,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built"),
]

VOCAB = 49152  # of the model
LINES = "".join(f"item_{name} = load('{name}.json')\n" for name in ("red", "green", "blue", "white", "black"))
PROMPTS = [
    f"{LINES}\nThe same lines again:\n{LINES}\nAnd again:\n",
    "one two three four five six one two three four five six one two three",
    "The weather in the mountains",
]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 3},
    "filtered": {"seed": 3, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalized": {"seed": 3, "temperature": 0.4, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "with logprobs": {"temperature": 0.0, "logprobs": 2},
    "biased": {"temperature": 0.0, "logit_bias": {30: 2.0}},
    "stopped by a string": {"temperature": 0.0, "stop": ["green", "four five"]},
    "several samples": {"seed": 3, "temperature": 0.8, "n": 3},
}


@pytest.fixture(scope="module")
def real(model_file: Path) -> Iterator[LLM]:
    with LLM(model_file, num_blocks=600, max_context=1024, max_rows=16) as llm:
        yield llm


def drafted(llm: LLM) -> int:
    return sum(llm.client.counters().accepted_drafts.values())


def answers(llm: LLM, speculate: str, way: dict[str, Any], **words: Any) -> list[Any]:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, speculate=speculate, **way)
    found = llm.generate(PROMPTS, sampling, progress=False, **words)
    return [[(each.token_ids, each.text, each.logprobs, each.finish_reason) for each in one.samples] for one in found]


@pytest.mark.usefixtures("free_drafts")
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_the_same_with_drafts(real: LLM, way: str) -> None:
    without = answers(real, "off", WAYS[way])
    before = drafted(real)
    assert answers(real, "auto", WAYS[way]) == without
    assert answers(real, "auto", WAYS[way]) == without  # now from the tree
    assert drafted(real) > before


def loads(num_each: int) -> list[Any]:
    """Prompts of each of the benchmark's loads: all are texts, except for those of random tokens."""
    rng = random.Random(7)
    return [[load.prompt(rng, VOCAB) for _ in range(num_each)] for load in DRAFT_LOADS.values()]


@pytest.mark.usefixtures("free_drafts")
@pytest.mark.parametrize("num_each", [1, pytest.param(34, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["greedy", "seeded"])
def test_texts_of_every_load_are_the_same_with_drafts(real: LLM, way: str, num_each: int) -> None:
    num_drafted = 0
    for prompts in loads(num_each):
        sampling = [
            SamplingParams(max_tokens=64, ignore_eos=True, speculate=each, **WAYS[way]) for each in ("off", "auto")
        ]
        without, with_drafts = (real.generate(prompts, each, progress=False) for each in sampling)
        assert [each.tokens for each in with_drafts] == [each.tokens for each in without]
        num_drafted += sum(each.usage.accepted for each in with_drafts)
        assert sum(each.usage.drafted for each in without) == 0
    assert num_drafted > 0


@pytest.mark.usefixtures("free_drafts")
def test_a_prompt_in_chunks_and_a_preemption_change_nothing(model_file: Path) -> None:
    """All prompts are admitted at once, and one whole text leaves too few blocks for the other prompts."""
    sampling = {"temperature": 0.0, "max_tokens": 200, "ignore_eos": True}
    prompts = [f"{n} {PROMPTS[1]}" for n in range(4)]
    texts = []
    for speculate in ("off", "auto"):
        with LLM(model_file, num_blocks=16, max_context=256, max_rows=8, max_step_tokens=48, max_waiting=64) as llm:
            answers = llm.generate(prompts, SamplingParams(speculate=speculate, **sampling), progress=False)
            texts.append([each.tokens for each in answers])
            assert llm.client.counters().num_preemptions > 0
            assert (sum(llm.client.counters().accepted_drafts.values()) > 0) == (speculate == "auto")
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("free_drafts")
def test_a_request_of_a_dead_engine_goes_on_with_drafts(model_file: Path) -> None:
    """It was cut after some tokens: the rest is drafted and verified from there on."""
    with LLM(model_file, num_blocks=200, max_context=512, max_rows=4) as llm:
        sampling = SamplingParams(temperature=0.7, seed=5, max_tokens=60, ignore_eos=True)
        (whole,) = llm.generate([PROMPTS[0]], sampling, progress=False)
        for cut in (1, 17, 40):
            request = GenerateRequest(f"r{cut}", whole.prompt_tokens, sampling, resumed=(whole.tokens[:cut],))
            rest = [token for news in llm.client.stream(request) for token in getattr(news, "tokens", ())]
            assert tuple(rest) == whole.tokens[cut:]
        assert drafted(llm) > 0


def test_without_drafts_nothing_is_drafted(real: LLM) -> None:
    before = drafted(real)
    answers(real, "off", WAYS["greedy"])
    assert drafted(real) == before


@pytest.mark.usefixtures("free_drafts")
def test_constrained_text_is_the_same_with_drafts(real: LLM) -> None:
    pytest.importorskip("llguidance")
    shape = {"type": "object", "properties": {"text": {"type": "string", "minLength": 60}}, "required": ["text"]}
    constraint = Constraint(ConstraintKind.SCHEMA, json.dumps(shape))
    without = answers(real, "off", {"temperature": 0.0}, constraint=constraint)
    before = drafted(real)
    assert answers(real, "auto", {"temperature": 0.0}, constraint=constraint) == without
    assert drafted(real) > before


def test_an_engine_may_be_without_drafts(model_file: Path) -> None:
    with LLM(model_file, num_blocks=200, max_context=512, max_rows=4, speculate="off") as llm:
        answers(llm, "auto", WAYS["greedy"])
        assert llm.client.counters().drafted_tokens == {}


@pytest.mark.parametrize("way", ["greedy", "seeded"])
def test_the_model_as_its_own_draft_model_is_always_right(model_file: Path, way: str) -> None:
    """It does not pay, so it is tried now and then."""
    with LLM(model_file, num_blocks=200, max_context=512, max_rows=4, draft=str(model_file)) as llm:
        sampling = SamplingParams(max_tokens=40, ignore_eos=True, **WAYS[way])
        (found,) = llm.generate([PROMPTS[2]], sampling, progress=False)
        (without,) = llm.generate([PROMPTS[2]], sampling.updated(speculate="off"), progress=False)
        counters = llm.client.counters()
    assert found.tokens == without.tokens
    assert counters.drafted_tokens["model"] == counters.accepted_drafts["model"] > 0
