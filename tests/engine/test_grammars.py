"""Constrained requests through a core driven by hand: a toy model whose words are single characters."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")

import llguidance

from quire.engine.messages import Accepted
from quire.grammar import guidance
from quire.grammar.grammar import GrammarUnavailable
from quire.scheduler.speculation import Speculation
from quire.types.errors import InvalidRequest, StepFailed
from quire.types.request import Constraint, ConstraintKind, FinishReason, SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.engine.constrained_driver import PROMPT, ask, make_driver, regex, text_of
from tests.engine.driver import Driver
from tests.engine.known_drafts import KnownDrafts
from tests.models.toys import some_tokens
from tests.scheduler.simulator import suggest

pytestmark = pytest.mark.device

WAYS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=64),
    "seeded": SamplingParams(seed=12, max_tokens=64),
    "filters": SamplingParams(seed=3, temperature=1.3, top_k=5, top_p=0.8, min_p=0.02, max_tokens=64),
    "penalties": SamplingParams(
        seed=7, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.4, max_tokens=64
    ),
    "bias": SamplingParams(seed=7, logit_bias={ord("#"): 100.0, ord("}"): -2.0}, max_tokens=64),
}
FORM = r'\{"name": "[a-z]{1,12}", "(left|right)": [1-9]\d{0,3}\}'


@pytest.fixture
def make(toy_folder: Path) -> Callable[..., Driver]:
    return partial(make_driver, toy_folder)


# ── sampling ──


@pytest.mark.parametrize("way", WAYS)
def test_constraints_hold_for_all_sampling_parameters_and_jump_forward_changes_only_the_steps(
    make: Any, way: str
) -> None:
    jumping, stepping = make(), make(jump_forward=False)
    for driver in (jumping, stepping):
        ask(driver, "a", regex(FORM), WAYS[way])
        driver.run()
    assert re.fullmatch(FORM, text_of(jumping.tokens("a"))) and jumping.records["a", 0].finish is FinishReason.STOP
    assert jumping.tokens("a") == stepping.tokens("a")
    forced = jumping.records["a", 0].num_forced
    assert forced >= 20 and stepping.records["a", 0].num_forced == 0
    assert jumping.core.counters().num_steps == len(jumping.tokens("a")) - forced
    assert stepping.core.counters().num_steps == len(stepping.tokens("a"))
    assert jumping.core.counters().forced_tokens == forced


def test_tokens_forced_at_the_start_are_computed_with_the_prompt(make: Any) -> None:
    driver = make()
    ask(driver, "a", regex(r"abcdef\d"))
    driver.run()
    assert text_of(driver.tokens("a"))[:6] == "abcdef" and driver.program.batches == [(21 + 6, 1, 1)]


def test_a_fully_forced_text_needs_no_step(make: Any) -> None:
    driver = make()
    ask(driver, "a", Constraint(ConstraintKind.CHOICE, choices=("only",)), SamplingParams(n=2))
    driver.run()
    assert [text_of(driver.tokens("a", sample)) for sample in (0, 1)] == ["only", "only"]
    assert driver.core.counters().num_steps == 0 and driver.records["a", 1].num_forced == 4


def test_a_complete_text_ends_despite_min_tokens_and_ignore_eos(make: Any) -> None:
    driver = make()
    for name, more in {"least": {"min_tokens": 9}, "on": {"ignore_eos": True}}.items():
        ask(driver, name, regex("[ab]c"), SamplingParams(max_tokens=20, seed=1, **more))
        ask(driver, f"{name} of many", regex("[ab]{6,}"), SamplingParams(max_tokens=12, seed=1, **more))
    driver.run()
    for name in ("least", "on"):
        assert (
            re.fullmatch("[ab]c", text_of(driver.tokens(name))) and driver.records[name, 0].finish is FinishReason.STOP
        )
    assert len(text_of(driver.tokens("least of many"))) >= 9
    assert (
        len(text_of(driver.tokens("on of many"))) == 12
        and driver.records["on of many", 0].finish is FinishReason.LENGTH
    )


def test_max_tokens_cuts_forced_tokens_too(make: Any) -> None:
    driver = make()
    for name, limit in (("in the choice", 3), ("in what is forced", 6), ("at the start", 1)):
        ask(driver, name, regex("x[ab]{3}yyyyyy"), SamplingParams(max_tokens=limit, seed=2))
    driver.run()
    for name, limit in (("in the choice", 3), ("in what is forced", 6), ("at the start", 1)):
        told = driver.records[name, 0]
        assert len(told.tokens) == limit and told.finish is FinishReason.LENGTH
    assert driver.records["in what is forced", 0].num_forced == 3


def test_a_stop_token_ends_an_incomplete_text(make: Any) -> None:
    driver = make()
    ask(driver, "a", regex("[ab]{2}stop[ab]{2}"), SamplingParams(stop_token_ids=(ord("o"),), seed=1))
    assert text_of(driver.run().tokens("a"))[2:] == "sto" and driver.records["a", 0].finish is FinishReason.STOP


def test_samples_of_a_request_differ(make: Any) -> None:
    driver = make()
    ask(driver, "a", regex(FORM), SamplingParams(n=4, seed=5, max_tokens=64))
    texts = [text_of(driver.run().tokens("a", sample)) for sample in range(4)]
    assert all(re.fullmatch(FORM, text) for text in texts) and len(set(texts)) > 1
    alone = make()
    ask(alone, "b", regex(FORM), SamplingParams(n=1, seed=5, max_tokens=64))
    assert text_of(alone.run().tokens("b")) == texts[0]


def test_with_log_probabilities_no_token_is_forced_without_sampling(make: Any) -> None:
    driver, jumping = make(), make()
    asked = SamplingParams(seed=3, max_tokens=64, logprobs=2, prompt_logprobs=1)
    ask(driver, "a", regex(FORM), asked)
    ask(jumping, "a", regex(FORM), SamplingParams(seed=3, max_tokens=64))
    told = driver.run().records["a", 0]
    assert told.tokens == jumping.run().tokens("a") and told.num_forced == 0
    assert [each.token for each in told.logprobs] == told.tokens and len(told.prompt_logprobs) == len(PROMPT) - 1


def test_drafts_change_the_number_of_steps_and_not_the_text(make: Any) -> None:
    plain, drafted = make(jump_forward=False), make(jump_forward=False)
    sampling = SamplingParams(seed=9, max_tokens=64, min_tokens=60)  # more than the form has room for
    ask(plain, "a", regex(FORM), sampling)
    text = plain.run().tokens("a")
    ask(drafted, "a", regex(FORM), sampling)
    while not drafted.records["a", 0].tokens:
        drafted.step()
    while not drafted.records["a", 0].has_ended:
        said = len(drafted.tokens("a"))
        right = text[said : said + 4]
        guess = right if said % 3 else [*right[:2], *((token + 1) % 128 for token in right[2:])]
        suggest(drafted.core._scheduler, "a", 0, tuple(guess))
        drafted.step()
    assert drafted.run().tokens("a") == text
    assert drafted.core.counters().num_steps < plain.core.counters().num_steps


@pytest.mark.parametrize("more", [{}, {"min_tokens": 5}, {"ignore_eos": True}, {"logprobs": 1}], ids=str)
def test_no_end_token_follows_a_complete_text_whose_last_tokens_were_drafts(make: Any, more: dict[str, Any]) -> None:
    driver = make(jump_forward=False, speculate="off")  # drafts come from this test alone
    sampling = SamplingParams(seed=1, max_tokens=5, **more)
    ask(driver, "plain", regex("[ab]{4}"), sampling)
    expected = driver.run().tokens("plain")
    ask(driver, "drafted", regex("[ab]{4}"), sampling)
    while not driver.records["drafted", 0].tokens:
        driver.step()
    suggest(driver.core._scheduler, "drafted", 0, tuple(expected[1:]))
    driver.step()
    told = driver.run().records["drafted", 0]
    assert told.tokens == expected and len(expected) == 4 and told.finish is FinishReason.STOP
    assert [each.token for each in told.logprobs] == (expected if "logprobs" in more else [])


@pytest.mark.usefixtures("each_depth")
@pytest.mark.parametrize("way", ["greedy", "seeded", "penalties"])
def test_drafts_cross_the_end_of_a_thought_and_change_nothing(
    toy_folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thought is free text, and what follows it is not. Wrong drafts are in both, and the text is whole."""
    monkeypatch.setattr(Speculation, "_best_counts", lambda self, found, _: [len(each.tokens) for each in found])
    form = r"[a-z <>]{9,20}</think>" + FORM
    sampling, checkpoint = WAYS[way].updated(max_tokens=90), open_checkpoint(toy_folder)
    plain = Driver(checkpoint=checkpoint, jump_forward=False, speculate="off")
    ask(plain, "a", regex(form), sampling)
    text = plain.run().tokens("a")
    assert re.fullmatch(form, text_of(text))
    known = KnownDrafts({"a": (PROMPT, text)}, wrong_every=7)
    drafted = Driver(checkpoint=checkpoint, jump_forward=False, drafters=[known])
    ask(drafted, "a", regex(form), sampling)
    assert drafted.run().tokens("a") == text
    counters = drafted.core.counters()
    assert 20 < counters.accepted_drafts["known"] < counters.drafted_tokens["known"]


def test_a_preempted_text_resumes_where_it_was(make: Any) -> None:
    form = r'\{"name": "[a-z]{40}", "value": \d{30}\}'
    roomy, tight = make(num_blocks=100), make(num_blocks=14)
    for driver in (roomy, tight):
        for number in range(3):
            ask(
                driver,
                str(number),
                regex(form),
                SamplingParams(seed=number, max_tokens=100),
                prompt=some_tokens(20 + number),
            )
        driver.run()
    assert tight.core.counters().num_preemptions > 0 and roomy.core.counters().num_preemptions == 0
    for number in range(3):
        assert re.fullmatch(form, text_of(tight.tokens(str(number))))
        assert tight.tokens(str(number)) == roomy.tokens(str(number))


def test_unconstrained_requests_have_the_same_output_as_alone(make: Any) -> None:
    prompts = {f"free {n}": some_tokens(7 + 5 * n) for n in range(6)}
    alone, mixed = make(num_blocks=300), make(num_blocks=300)
    for number, (name, prompt) in enumerate(prompts.items()):
        alone.submit(name, prompt)
        mixed.submit(name, prompt)
        ask(mixed, f"held {number}", regex(FORM), WAYS["seeded"], prompt=prompt)
        mixed.step()
    alone.run()
    mixed.run()
    for name in prompts:
        assert mixed.tokens(name) == alone.tokens(name)


def test_steps_planned_ahead_do_not_change_the_output(make: Any) -> None:
    shallow, deep = make(num_blocks=300), make(num_blocks=300)
    deep.core._depth = 2
    for driver in (shallow, deep):
        for number in range(4):
            driver.submit(f"free {number}", some_tokens(9 + number))
            ask(driver, f"held {number}", regex(FORM), WAYS["seeded"], prompt=some_tokens(30 + number))
        driver.run()
    assert {name: told.tokens for name, told in deep.records.items()} == {
        n: told.tokens for n, told in shallow.records.items()
    }
    ask(deep, "last", regex(FORM), WAYS["seeded"])
    deep.submit("free", PROMPT)
    while not deep.records["last", 0].tokens:
        deep.step()
    deep.step()
    deep.core._close()
    deep._record_messages()
    assert deep.records["last", 0].finish is deep.records["free", 0].finish is FinishReason.CANCELLED


# ── what cannot be ──


def test_a_request_without_an_allowed_token_fails_alone(make: Any) -> None:
    driver = make()
    ask(driver, "no such letter", regex("aü"))
    ask(driver, "no such letter later", regex("[ab][ab]ü"))
    ask(driver, "not allowed", regex("[ab]{9}"), SamplingParams(allowed_token_ids=(ord("x"), ord("y"))))
    ask(driver, "fine", regex("[ab]{9}"))
    driver.submit("free", PROMPT)
    driver.run()
    errors = {name: told.error for (name, _), told in driver.records.items() if told.error is not None}
    assert {name: (type(error), error.public.split(": ")[-1]) for name, error in errors.items()} == {
        "no such letter": (InvalidRequest, "no token of the model can come next."),
        "no such letter later": (InvalidRequest, "no token of the model can come next."),
        "not allowed": (StepFailed, "the request's parameters or its grammar rule out every token."),
    }
    assert len(driver.tokens("fine")) == 9 and len(driver.tokens("free")) == 64


def test_a_grammar_that_raises_fails_its_request_alone(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    driver = make()
    ask(driver, "broken", regex("[ab]{60}"))  # long enough to be there still, whoever is compiled first
    ask(driver, "fine", regex("[ab]{9}"))
    while not (driver.records["fine", 0].tokens and driver.records["broken", 0].tokens):
        driver.step()
    text = driver.core._grammars._of_part["broken"]
    text.state.fill_mask = lambda *arguments: 1 / 0
    driver.run()
    error = driver.records["broken", 0].error
    assert isinstance(error, StepFailed) and "ZeroDivisionError" in error.public and "broken" in caplog.text
    assert len(driver.tokens("fine")) == 9


def test_a_grammar_that_becomes_too_complex_fails_its_request_alone(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guidance, "LIMITS", llguidance.LLParserLimits(step_lexer_fuel=500, verbose_errors=False))
    driver = make()
    # Which of the last 300 characters were an a is too much to remember.
    ask(driver, "complex", regex(r"[ab]*a[ab]{300}b[ab]*"), SamplingParams(seed=1, temperature=9.0, ignore_eos=True))
    ask(driver, "fine", regex("[ab]{9}"))
    driver.run()
    assert len(driver.tokens("fine")) == 9
    error = driver.records["complex", 0].error
    assert isinstance(error, InvalidRequest) and re.search(r"failed after \d+ tokens: .*lexer", error.public)
    assert driver.records["complex", 0].tokens


def test_a_grammar_that_does_not_compile_is_refused_and_never_accepted(make: Any) -> None:
    driver = make()
    ask(driver, "a", Constraint(ConstraintKind.SCHEMA, '{"items": {"contains": {}}}'))
    driver.run()
    error = driver.records["a", 0].error
    assert isinstance(error, InvalidRequest) and "#/items" in error.public and "contains" in error.public
    assert not any(isinstance(message, Accepted) for message in driver.messages)
    assert driver.core.counters().num_refused == 1


def test_a_model_without_a_tokenizer_refuses_constraints() -> None:
    driver = Driver()
    ask(driver, "a", regex("a"))
    driver.submit("b", PROMPT)
    driver.run()
    assert isinstance(driver.records["a", 0].error, GrammarUnavailable) and len(driver.tokens("b")) == 64


def test_an_installation_without_the_library_refuses_constraints_and_serves_the_rest(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "quire.grammar.guidance", raising=False)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    driver = make()
    ask(driver, "a", regex("a"))
    driver.submit("b", PROMPT)
    driver.run()
    error = driver.records["a", 0].error
    assert isinstance(error, GrammarUnavailable) and "llguidance" in error.public and error.status == 501
    assert len(driver.tokens("b")) == 64
