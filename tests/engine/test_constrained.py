"""Structured output by the real model on the native device: every kind, streamed and whole, alone and in company."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")

from quire import AsyncLLM, Constraint, ConstraintKind
from quire.engine.llm import LLM
from quire.engine.messages import Flush
from quire.types.answer import Completion
from quire.types.errors import InvalidRequest
from quire.types.request import FinishReason, SamplingParams
from tests.devices.cpu.programs import HAS_NATIVE
from tests.grammar.schemas import Case, cases, judge

pytestmark = [
    pytest.mark.device,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built"),
]

SETTINGS: dict[str, Any] = {"num_blocks": 1500, "max_context": 2048, "max_rows": 32}
NUM_SAMPLED = 24  # of the schemas, in a run that is not slow
PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20},
        "last_name": {"type": "string", "maxLength": 20},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2000},
    },
    "required": ["first_name", "last_name", "born"],
    "additionalProperties": False,
}
JSON_LIST = r"""
root  ::= "[" item ("," " " item)* "]"
item  ::= "\"" [a-z]{1,10} "\""
"""


def question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def schema(value: Any) -> Constraint:
    return Constraint(ConstraintKind.SCHEMA, json.dumps(value))


@pytest.fixture(scope="module")
def real(model_file: Path) -> Iterator[LLM]:
    with LLM(model_file, **SETTINGS) as llm:
        yield llm


@pytest.fixture(scope="module")
def stepping(model_file: Path) -> Iterator[LLM]:
    """The same without jumps."""
    with LLM(model_file, jump_forward=False, **SETTINGS) as llm:
        yield llm


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "constraint, form",
    [
        (Constraint(ConstraintKind.REGEX, r"(19|20)\d\d-(0[1-9]|1[0-2])"), r"(19|20)\d\d-(0[1-9]|1[0-2])"),
        (Constraint(ConstraintKind.CHOICE, choices=("Paris", "London", "New York")), "Paris|London|New York"),
        (Constraint(ConstraintKind.LARK, 'start: "Answer: " /[A-Za-z ]{3,20}/ "."'), r"Answer: [A-Za-z ]{3,20}\."),
        (Constraint(ConstraintKind.EBNF, JSON_LIST), r'\["[a-z]{1,10}"(, "[a-z]{1,10}")*\]'),
        (schema(PERSON), r'\{"first_name": .*, "born": 1\d{3}\}|\{"first_name": .*, "born": 2000\}'),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else "",
)
def test_every_kind_of_constraint_is_applied(real: LLM, constraint: Constraint, form: str, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature, seed=4, max_tokens=200)
    (completion,) = real.chat(question("Which city is the capital of France?"), sampling, constraint=constraint)
    assert completion.finish_reason is FinishReason.STOP
    assert re.fullmatch(form, completion.text), completion.text


def test_a_json_object_is_valid_and_a_truncated_one_finishes_with_length(real: LLM) -> None:
    constraint = Constraint(ConstraintKind.JSON)
    ways = [SamplingParams(temperature=0.8, seed=seed, max_tokens=150) for seed in range(6)]
    answers = real.chat([question("Describe a cat as a short JSON object.")] * 6, ways, constraint=constraint)
    whole = [answer for answer in answers if answer.finish_reason is FinishReason.STOP]
    assert whole and all(isinstance(json.loads(answer.text), dict) for answer in whole)
    (cut,) = real.chat(question("Describe a cat as JSON."), SamplingParams(max_tokens=3, seed=1), constraint=constraint)
    assert cut.finish_reason is FinishReason.LENGTH and cut.usage.output == 3


def test_a_stream_is_the_whole_answer_in_pieces_and_its_usage_counts_what_was_forced(real: LLM) -> None:
    sampling = SamplingParams(temperature=0.7, seed=11, max_tokens=120, speculate="off")  # else some are drafted first
    deltas = list(real.stream(question("Who wrote Hamlet?"), sampling, constraint=schema(PERSON)))
    (whole,) = real.chat(question("Who wrote Hamlet?"), sampling, constraint=schema(PERSON))
    assert "".join(delta.text for delta in deltas) == whole.text
    judge(PERSON, whole.text)
    usage = deltas[-1].usage
    assert usage is not None and 0 < usage.forced == whole.usage.forced < usage.output == len(whole.tokens)
    forced = [token for delta in deltas[:1] for token in delta.tokens]
    assert real.tokenizer is not None and real.tokenizer.decode(forced) == '{"first_name":'


def test_a_stop_string_ends_an_answer_within_forced_tokens_too(real: LLM) -> None:
    sampling = SamplingParams(temperature=0.7, seed=11, max_tokens=120, stop=("last_",))
    (completion,) = real.chat(question("Who wrote Hamlet?"), sampling, constraint=schema(PERSON))
    assert completion.text.endswith(', "') and completion.finish_reason is FinishReason.STOP
    assert completion.usage.forced < completion.usage.output
    (again,) = real.chat(question("Who wrote Hamlet?"), sampling, constraint=schema(PERSON))
    assert again.text == completion.text


def test_jump_forward_changes_the_number_of_steps_and_not_the_text(real: LLM, stepping: LLM) -> None:
    picked = cases()[::60]
    for temperature in (0.0, 1.0):
        with_jumps, num_jumping = answers_of(real, picked, temperature, speculate="off")
        without, num_stepping = answers_of(stepping, picked, temperature, speculate="off")
        assert [each.tokens for each in with_jumps] == [each.tokens for each in without]
        assert sum(each.usage.forced for each in with_jumps) > 0 == sum(each.usage.forced for each in without)
        assert num_jumping < num_stepping


def test_constrained_requests_do_not_change_greedy_answers_of_others(real: LLM) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=40)
    prompts = [question(f"Tell me a fact about the number {n}.") for n in range(6)]
    alone = [real.chat(prompt, greedy)[0].text for prompt in prompts]
    forms = [form for _ in prompts for form in (None, schema(PERSON))]
    mixed = real.chat([prompt for prompt in prompts for _ in range(2)], greedy, constraint=forms)
    assert [completion.text for completion in mixed[::2]] == alone
    for completion in mixed[1::2]:
        if completion.finish_reason is FinishReason.STOP:
            judge(PERSON, completion.text)


def test_an_unsupported_schema_is_refused_with_its_location(real: LLM) -> None:
    with pytest.raises(InvalidRequest, match="#/properties/tags: not supported: contains") as raised:
        real.generate("x", constraint=schema({"properties": {"tags": {"type": "array", "contains": {}}}}))
    assert raised.value.status == 400 and raised.value.field == "constraint"
    with pytest.raises(InvalidRequest, match="2 prompts and 3 constraints"):
        real.generate(["a", "b"], constraint=[None, None, None])


def test_a_child_process_applies_constraints_too(model_file: Path, real: LLM) -> None:
    sampling = SamplingParams(temperature=1.0, seed=8, max_tokens=120, speculate="off")
    (expected,) = real.chat(question("Who wrote Hamlet?"), sampling, constraint=schema(PERSON))

    async def ask() -> tuple[Completion, list[Any], str]:
        async with await AsyncLLM.open(model_file, **SETTINGS) as llm:
            (whole,) = await llm.chat(question("Who wrote Hamlet?"), sampling, constraint=schema(PERSON))
            stream = llm.stream(question("Who wrote Hamlet?"), sampling, constraint=schema(PERSON))
            deltas = [delta async for delta in stream]
            with pytest.raises(InvalidRequest) as raised:
                await llm.generate("x", constraint=schema({"items": {"contains": {}}}))
            return whole, deltas, raised.value.public

    whole, deltas, refusal = asyncio.run(ask())
    assert whole.text == expected.text == "".join(delta.text for delta in deltas)
    assert whole.usage.forced == expected.usage.forced == deltas[-1].usage.forced > 0
    assert "#/items" in refusal


# ── many schemas ──


def answers_of(llm: LLM, asked: list[Case], temperature: float = 1.0, **more: Any) -> tuple[list[Completion], int]:
    """An answer to each of them, at most 32 at a time, and the steps that they took."""
    prompts = [question(f"Give me an example of a {case.about}, as JSON.") for case in asked]
    ways = [SamplingParams(temperature=temperature, seed=seed, max_tokens=200, **more) for seed in range(len(asked))]
    before = llm.client.counters().num_steps
    answers = llm.chat(prompts, ways, constraint=[schema(case.schema) for case in asked])
    return answers, llm.client.counters().num_steps - before


def judged(asked: list[Case], answers: list[Completion]) -> int:
    """How many were finished. All of those must be valid, and the others are cut."""
    num_finished = 0
    for case, answer in zip(asked, answers, strict=True):
        if answer.finish_reason is FinishReason.STOP:
            judge(case.schema, answer.text)
            num_finished += 1
        else:
            assert answer.finish_reason is FinishReason.LENGTH and answer.usage.output == 200
    return num_finished


def test_finished_answers_to_some_schemas_are_valid(real: LLM) -> None:
    every = cases()
    asked = every[:: len(every) // NUM_SAMPLED]
    answers, _ = answers_of(real, asked)
    assert judged(asked, answers) > 0.8 * len(asked)


def check_answers_with_drafts(llm: LLM, asked: list[Case], without: list[Completion], least_share: float) -> None:
    """Check that answers with drafts are valid and equal to those without, and that many drafted tokens are accepted.

    The cache has the answers without drafts. It is emptied first: the tree drafter would replay them. `least_share`: of
    the output, at least so many tokens are accepted drafts.
    """
    llm.client.ask(Flush()).result()
    answers, _ = answers_of(llm, asked)
    assert [each.tokens for each in answers] == [each.tokens for each in without]
    assert judged(asked, answers) == judged(asked, without)
    num_tokens, num_drafted, num_accepted = (
        sum(getattr(each.usage, name) for each in answers) for name in ("output", "drafted", "accepted")
    )
    assert least_share * num_tokens < num_accepted < num_drafted


@pytest.mark.usefixtures("free_drafts")
def test_finished_answers_to_some_schemas_are_the_same_with_drafts(real: LLM) -> None:
    every = cases()
    asked = every[:: len(every) // NUM_SAMPLED]
    without, _ = answers_of(real, asked, speculate="off")
    assert judged(asked, without) > 0.8 * len(asked)
    check_answers_with_drafts(real, asked, without, least_share=0.03)


@pytest.mark.slow
@pytest.mark.usefixtures("free_drafts")
@pytest.mark.timeout(1800)
def test_finished_answers_to_all_schemas_are_valid_with_and_without_jumps_and_drafts(real: LLM, stepping: LLM) -> None:
    asked = cases()
    assert len(asked) >= 300
    answers, num_jumping = answers_of(real, asked, speculate="off")
    num_finished = judged(asked, answers)
    assert num_finished > 0.8 * len(asked)
    without, num_stepping = answers_of(stepping, asked, speculate="off")
    assert [each.tokens for each in answers] == [each.tokens for each in without]
    check_answers_with_drafts(real, asked, answers, least_share=0.08)
    num_tokens, num_forced = (sum(getattr(each.usage, name) for each in answers) for name in ("output", "forced"))
    assert 0 < num_forced < num_tokens and num_jumping < num_stepping
    print(  # `-s` shows it: the figures of docs/PERFORMANCE.md
        f"{len(asked)} schemas, {num_finished} finished and valid, {num_tokens} tokens, {num_forced} forced, "
        f"{num_jumping} steps with jumps and {num_stepping} without"
    )
