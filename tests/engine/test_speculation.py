"""With drafts the text is the same as without, in every way of sampling, by the real model on the native device."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quire.bench.load.draft_loads import DRAFT_LOADS
from quire.engine.llm import LLM
from quire.engine.messages import Flush
from quire.scheduler.speculation import Speculation
from quire.spec.drafter import Draft, Text
from quire.types.request import Constraint, ConstraintKind, GenerateRequest, SamplingParams
from tests.devices.cpu.programs import HAS_NATIVE
from tests.engine.driver import Driver
from tests.engine.known_drafts import KnownDrafts
from tests.models.toys import some_tokens

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
BLUE, GREEN, SIX, THE = 16591, 9298, 2976, 260  # tokens of the plain greedy answers
UNDERSCORE = 79
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"seed": 3, "temperature": 0.6},
    "filtered": {"seed": 3, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "typical": {"seed": 3, "temperature": 0.7, "typical_p": 0.5},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.07},
    "frequency": {"temperature": 0.0, "frequency_penalty": 0.2},
    "presence": {"temperature": 0.0, "presence_penalty": 1.0},
    "all penalties": {
        **{"seed": 3, "temperature": 0.4},
        **{"repetition_penalty": 1.02, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    },
    "bad words": {"temperature": 0.0, "bad_words": [[UNDERSCORE, BLUE], [SIX] * 3]},
    "biased": {"temperature": 0.0, "logit_bias": {GREEN: -100.0, THE: -100.0}},
    "with logprobs": {"temperature": 0.0, "logprobs": 2},
    "stopped by a string": {"temperature": 0.0, "stop": ["green", "in the"]},
    "stopped by a token": {"temperature": 0.0, "stop_token_ids": [GREEN, THE]},
    "several samples": {"seed": 3, "temperature": 0.8, "n": 3},
}
TOY_WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "seeded": {"seed": 3, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
    "penalized": {"temperature": 0.0, "frequency_penalty": 0.4, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    "typical": {"seed": 4, "typical_p": 0.8},
}
TOY_TOKENS = 40  # of each answer
TOY_PROMPTS = {name: some_tokens(4 + 5 * place) for place, name in enumerate(TOY_WAYS)}
SAME_TOKENS = ("greedy", "seeded", "with logprobs", "several samples")  # as with temperature and seed alone


class DraftTotals(NamedTuple):
    """Tokens drafted and accepted, by drafter."""

    drafted: Counter[str]
    accepted: Counter[str]

    @classmethod
    def of(cls, llm: LLM) -> DraftTotals:
        counters = llm.client.counters()
        return cls(Counter(counters.drafted_tokens), Counter(counters.accepted_drafts))

    def since(self, before: DraftTotals) -> DraftTotals:
        return DraftTotals(self.drafted - before.drafted, self.accepted - before.accepted)

    def __add__(self, other: Any) -> DraftTotals:
        return DraftTotals(self.drafted + other.drafted, self.accepted + other.accepted)

    @property
    def are_mixed(self) -> bool:
        """Were some drafted tokens accepted and some rejected?"""
        return 0 < self.accepted.total() < self.drafted.total()


NO_DRAFTS = DraftTotals(Counter(), Counter())


@pytest.fixture(scope="module")
def real(model_file: Path) -> Iterator[LLM]:
    with LLM(model_file, num_blocks=600, max_context=1024, max_rows=16) as llm:
        yield llm


@pytest.fixture
def unlearned(model_file: Path) -> Iterator[LLM]:
    """An engine of this test alone: which drafts are verified depends on those that were accepted before."""
    with LLM(model_file, num_blocks=600, max_context=1024, max_rows=16) as llm:
        yield llm


def flush(llm: LLM) -> None:
    """Empty the prefix cache, from which the tree drafter would replay an earlier answer."""
    llm.client.ask(Flush()).result()


def answers(llm: LLM, speculate: str, way: dict[str, Any], **words: Any) -> list[Any]:
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, speculate=speculate, **way)
    found = llm.generate(PROMPTS, sampling, progress=False, **words)
    return [[(each.token_ids, each.text, each.logprobs, each.finish_reason) for each in one.samples] for one in found]


def drafts_of_equal_answers(llm: LLM, answer: Callable[[str], Any]) -> tuple[DraftTotals, DraftTotals]:
    """Check that answers are the same with drafts. Return what was drafted with an empty cache, and with the answers
    in the cache."""
    without, totals = answer("off"), []
    flush(llm)
    for _ in range(2):
        before = DraftTotals.of(llm)
        assert answer("auto") == without
        totals.append(DraftTotals.of(llm).since(before))
    return totals[0], totals[1]


@pytest.mark.usefixtures("free_drafts")
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_the_same_with_drafts(unlearned: LLM, way: str) -> None:
    fresh, replayed = drafts_of_equal_answers(unlearned, lambda speculate: answers(unlearned, speculate, WAYS[way]))
    assert fresh.drafted["suffix"] > 0 and fresh.are_mixed
    assert replayed.drafted["tree"] > 0 and replayed.accepted["tree"] > 0


@pytest.mark.parametrize("way", sorted(WAYS.keys() - set(SAME_TOKENS)))
def test_every_other_way_changes_tokens(real: LLM, way: str) -> None:
    """A way without effect would show nothing about drafts."""
    plain = {name: value for name, value in WAYS[way].items() if name in ("temperature", "seed")}
    assert answers(real, "off", WAYS[way]) != answers(real, "off", plain)


@pytest.mark.usefixtures("free_drafts")
@pytest.mark.parametrize("num_each", [1, pytest.param(34, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["greedy", "seeded"])
def test_texts_of_every_load_are_the_same_with_drafts(unlearned: LLM, way: str, num_each: int) -> None:
    """All loads are texts, except for that of random tokens."""
    pytest.importorskip("llguidance")  # one load has a schema
    rng, every_fresh = random.Random(7), NO_DRAFTS
    for load in DRAFT_LOADS.values():
        prompts = [load.prompt(rng, VOCAB) for _ in range(num_each)]
        sampling = SamplingParams(max_tokens=64, ignore_eos=load.constraint is None, **WAYS[way])

        def tokens(speculate: str, prompts: Any = prompts, load: Any = load, sampling: Any = sampling) -> Any:
            found = unlearned.generate(
                prompts, sampling.updated(speculate=speculate), constraint=load.constraint, progress=False
            )
            assert speculate == "auto" or sum(each.usage.drafted for each in found) == 0
            return [each.tokens for each in found]

        fresh, replayed = drafts_of_equal_answers(unlearned, tokens)
        every_fresh += fresh
        assert replayed.drafted["tree"] > 0
    assert every_fresh.drafted["suffix"] > 0 and every_fresh.are_mixed


@pytest.mark.usefixtures("free_drafts")
def test_a_prompt_in_chunks_and_a_preemption_change_nothing(model_file: Path) -> None:
    """All prompts are admitted at once, and one whole text leaves too few blocks for the other prompts."""
    sampling: dict[str, Any] = {"temperature": 0.7, "seed": 3, "max_tokens": 200, "ignore_eos": True}
    prompts = [f"{n} {PROMPTS[1]}" for n in range(4)]
    texts = []
    for speculate in ("off", "auto"):
        with LLM(model_file, num_blocks=16, max_context=256, max_rows=8, max_step_tokens=48, max_waiting=64) as llm:
            answers = llm.generate(prompts, SamplingParams(speculate=speculate, **sampling), progress=False)
            texts.append([each.tokens for each in answers])
            assert llm.client.counters().num_preemptions > 0
            assert DraftTotals.of(llm).are_mixed == (speculate == "auto")
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("free_drafts")
def test_a_request_of_a_dead_engine_goes_on_with_drafts(model_file: Path) -> None:
    """It was cut after some tokens: the rest is drafted and verified from there on."""
    with LLM(model_file, num_blocks=200, max_context=512, max_rows=4) as llm:
        sampling = SamplingParams(temperature=0.7, seed=5, max_tokens=60, ignore_eos=True)
        (whole,) = llm.generate([PROMPTS[0]], sampling.updated(speculate="off"), progress=False)
        drafts = NO_DRAFTS
        for cut in (1, 17, 40):
            flush(llm)
            before = DraftTotals.of(llm)
            request = GenerateRequest(f"r{cut}", whole.prompt_tokens, sampling, resumed=(whole.tokens[:cut],))
            rest = [token for news in llm.client.stream(request) for token in getattr(news, "tokens", ())]
            assert tuple(rest) == whole.tokens[cut:]
            drafts_of_rest = DraftTotals.of(llm).since(before)
            assert drafts_of_rest.drafted["suffix"] > 0
            drafts += drafts_of_rest
        assert drafts.are_mixed


def test_without_drafts_nothing_is_drafted(real: LLM) -> None:
    before = DraftTotals.of(real)
    answers(real, "off", WAYS["greedy"])
    assert DraftTotals.of(real) == before


@pytest.mark.usefixtures("free_drafts")
def test_constrained_text_is_the_same_with_drafts(unlearned: LLM) -> None:
    pytest.importorskip("llguidance")
    shape = {"type": "object", "properties": {"text": {"type": "string", "minLength": 60}}, "required": ["text"]}
    constraint = Constraint(ConstraintKind.SCHEMA, json.dumps(shape))
    fresh, replayed = drafts_of_equal_answers(
        unlearned, lambda speculate: answers(unlearned, speculate, WAYS["greedy"], constraint=constraint)
    )
    assert fresh.drafted["suffix"] > 0 and fresh.are_mixed
    assert replayed.drafted["tree"] > 0


class PlacedDrafts(KnownDrafts):
    """Known drafts, wrong at every fifth place of a text. Records the length of each text when a draft is proposed."""

    WRONG_EVERY = 5

    def __init__(self, answers: dict[str, tuple[Sequence[int], Sequence[int]]]) -> None:
        super().__init__(answers, self.WRONG_EVERY)
        self.begins: dict[str, list[int]] = {name: [] for name in answers}

    def propose(self, texts: Sequence[Text], limit: int) -> list[Draft]:
        drafts = super().propose(texts, min(limit, self.WRONG_EVERY + 3))
        for text, draft in zip(texts, drafts, strict=True):
            if draft.tokens:
                self.begins[text.sample_id].append(len(text.tokens))
        return drafts


def toy_answers(driver: Driver) -> dict[str, Any]:
    """The tokens and logprobs of an answer in each of TOY_WAYS, all at once."""
    driver.submit("first step", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True))
    driver.run()  # drafts are proposed once a step was measured
    for name, way in TOY_WAYS.items():
        driver.submit(name, TOY_PROMPTS[name], SamplingParams(max_tokens=TOY_TOKENS, ignore_eos=True, **way))
    driver.run()
    return {name: (driver.tokens(name), driver.records[name, 0].logprobs) for name in TOY_WAYS}


def drafted_places(num_prompt: int, num_lost: int) -> list[tuple[int, int]]:
    """Return where each draft of an answer begins and where it is first wrong. `num_lost`: steps without a draft after
    a rejected one."""
    end, every = num_prompt + TOY_TOKENS, PlacedDrafts.WRONG_EVERY
    begin, places = num_prompt + 1, list[tuple[int, int]]()  # the first token is sampled by the prompt's step
    while begin < end:
        wrong = begin + -begin % every
        places.append((begin, min(wrong, end - 1)))  # the last token is never a drafted one
        begin = wrong + 1 + num_lost
    return places


@pytest.mark.usefixtures("free_drafts")
@pytest.mark.parametrize("case, num_lost", [("llama", 0), ("lfm2", 1)])  # states are computed again after a rejection
def test_drafts_wrong_at_known_places_are_accepted_up_to_them(
    case: str, num_lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Speculation, "_best_counts", lambda self, found, *_: [len(each.tokens) for each in found])
    monkeypatch.setattr(Driver, "device_name", "cpu")
    without = toy_answers(Driver(case, speculate="off"))
    drafter = PlacedDrafts({name: (TOY_PROMPTS[name], without[name][0]) for name in TOY_WAYS})
    driver = Driver(case, drafters=[drafter])
    assert toy_answers(driver) == without
    places = {name: drafted_places(len(prompt), num_lost) for name, prompt in TOY_PROMPTS.items()}
    assert drafter.begins == {name: [begin for begin, _ in each] for name, each in places.items()}
    num_right = sum(wrong - begin for each in places.values() for begin, wrong in each)
    counters = driver.core.counters()
    assert counters.accepted_drafts["known"] == num_right > 0
    assert counters.drafted_tokens["known"] > num_right


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
