"""Every kind of constraint with the real model's vocabulary: allowed and forced tokens, and positions of errors."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance")

from quire.grammar.grammar import Backend, GrammarState, GrammarUnavailable, GrammarVocabulary, open_backend
from quire.sampling.mask import allowed_ids, blank
from quire.text.parsers.compose import constraint_for
from quire.text.parsers.reasoning import KNOWN
from quire.text.parsers.registry import by_name
from quire.types.chat import Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind

pytestmark = pytest.mark.pure

PERSON = {
    "type": "object",
    "properties": {"first_name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["first_name", "age"],
    "additionalProperties": False,
}


def schema(value: Any) -> Constraint:
    return Constraint(ConstraintKind.SCHEMA, json.dumps(value))


def allowed(state: GrammarState, words: GrammarVocabulary) -> set[int]:
    bits = blank(1, words.vocab_size)
    state.fill_mask(bits)
    return set(allowed_ids(bits[0], words.vocab_size).tolist())


def takes(state: GrammarState, words: GrammarVocabulary, text: str) -> bool:
    """May this text come, and may it end there? Every token of it must be in the mask of its place."""
    for token in words.tokenizer.encode(text):
        if token not in allowed(state, words):
            return False
        state.accept([token])
    return state.must_stop or bool(allowed(state, words) & set(words.end_ids))


@pytest.mark.parametrize(
    "constraint, good, bad",
    [
        (Constraint(ConstraintKind.JSON), ['{"a": [1, {"b": null}]}', "{}"], ["[1]", '"a"', "{a: 1}"]),
        (schema(PERSON), ['{"first_name": "Ann", "age": 3}'], ['{"age": 3}', '{"first_name": 3, "age": 3}']),
        (
            Constraint(ConstraintKind.REGEX, r"[A-Z][a-z]{2,4} \d+"),
            ["Mar 31", "June 1"],
            ["mar 3", "Mar ", "Marches 1"],
        ),
        (Constraint(ConstraintKind.REGEX, r"^a/b$"), ["a/b"], ["a", "a/bc"]),
        (
            Constraint(ConstraintKind.CHOICE, choices=("yes", "no", "yes, é 😀", 'a "q"')),
            ["yes", "yes, é 😀", 'a "q"'],
            ["y"],
        ),
        (Constraint(ConstraintKind.LARK, 'start: "<" WORD ">"\nWORD: /[a-z]+/'), ["<tag>"], ["<Tag>", "<>"]),
        (
            Constraint(ConstraintKind.EBNF, 'root ::= "a" x\nx ::= [0-9]+ ("é" | "\\u00fc")?'),
            ["a12", "a1ü", "a1é"],
            ["a"],
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else "",
)
def test_each_kind_of_constraint_accepts_only_matching_text(
    backend: Backend, words: GrammarVocabulary, constraint: Constraint, good: list[str], bad: list[str]
) -> None:
    grammar = backend.compile(constraint)
    assert [text for text in good if not takes(grammar.start(), words, text)] == []
    assert [text for text in bad if takes(grammar.start(), words, text)] == []


def test_json_is_written_on_one_line(backend: Backend, words: GrammarVocabulary) -> None:
    grammar = backend.compile(schema(PERSON))
    for text in (
        '{"first_name":"Ann","age":3}',
        '{ "first_name": "Ann", "age": 3}',
        '{"first_name": "Ann",\n"age": 3}',
    ):
        assert not takes(grammar.start(), words, text)


def test_forced_tokens_are_the_tokenizers_encoding_and_the_only_allowed_ones(
    backend: Backend, words: GrammarVocabulary
) -> None:
    state = backend.compile(schema(PERSON)).start()
    forced = state.forced_tokens()
    assert words.tokenizer.decode(forced) == '{"first_name":'
    assert forced == words.tokenizer.encode('{"first_name": "x')[: len(forced)]
    for token in forced:
        assert allowed(state, words) == {token}
        state.accept([token])
    assert state.forced_tokens() == [] and not state.must_stop


def test_must_stop_is_set_only_if_nothing_can_follow(backend: Backend, words: GrammarVocabulary) -> None:
    closed = backend.compile(Constraint(ConstraintKind.REGEX, "ab?")).start()
    assert not closed.must_stop
    closed.accept(words.tokenizer.encode("a"))
    assert not closed.must_stop and allowed(closed, words) >= set(words.end_ids)
    closed.accept(words.tokenizer.encode("b"))
    assert closed.must_stop and closed.error is None and allowed(closed, words) == set(words.end_ids)


def test_special_tokens_are_allowed_only_at_the_end(backend: Backend, words: GrammarVocabulary) -> None:
    state = backend.compile(Constraint(ConstraintKind.REGEX, "(?s).*")).start()
    assert allowed(state, words) & words.tokenizer.special_ids == set(words.end_ids)


def test_states_are_independent(backend: Backend, words: GrammarVocabulary) -> None:
    grammar = backend.compile(Constraint(ConstraintKind.CHOICE, choices=("left", "right")))
    first, second = grammar.start(), grammar.start()
    first.accept(words.tokenizer.encode("left"))
    assert first.must_stop and takes(second, words, "right") and takes(grammar.start(), words, "left")


def test_masks_after_drafts_stop_at_the_first_that_is_not_allowed(backend: Backend, words: GrammarVocabulary) -> None:
    grammar = backend.compile(schema(PERSON))
    state, slow = grammar.start(), grammar.start()
    text = words.tokenizer.encode('{"first_name": "Ann')
    drafts = [*text, words.tokenizer.encode("\n")[0], text[0]]
    bits = blank(1 + len(drafts), words.vocab_size)
    state.fill_mask(bits, drafts)
    for index, token in enumerate(text):
        assert set(allowed_ids(bits[index], words.vocab_size).tolist()) == allowed(slow, words)
        slow.accept([token])
    assert set(allowed_ids(bits[len(text)], words.vocab_size).tolist()) == allowed(slow, words)
    assert not bits[len(text) + 1 :].any()
    assert takes(state, words, '{"first_name": "B", "age": 1}'), "trying drafts has changed the state"


@pytest.mark.parametrize("begun", ["", "<think>"])
def test_masks_after_drafts_cross_the_end_of_a_thought(backend: Backend, words: GrammarVocabulary, begun: str) -> None:
    """Drafts from anywhere in a thought into the call after it: the masks are those of one token at a time."""
    tools, choice = (Tool("get_time"),), ToolChoice("required")
    grammar = backend.compile(constraint_for(by_name("llama3"), tools, choice, {}, KNOWN[0], begun))
    opening = "" if begun else "<think>"
    text = words.tokenizer.encode(f'{opening}Hm {{"name".</think>\n\n{{"name": "get_time", "parameters": {{}}}}')
    masks, state = [], grammar.start()
    for token in text:
        masks.append(allowed(state, words))
        state.accept([token])
    masks.append(allowed(state, words))
    assert state.error is None and not masks[-1].isdisjoint(words.end_ids)
    assert max(map(len, masks)) > 1000 and min(map(len, masks)) < 10, "a thought is any text, a call is not"
    for first in range(len(text)):
        state = grammar.start()
        state.accept(text[:first])
        drafts = text[first : first + 12]
        bits = blank(1 + len(drafts), words.vocab_size)
        state.fill_mask(bits, drafts)
        found = [set(allowed_ids(row, words.vocab_size).tolist()) for row in bits]
        assert found == masks[first : first + 1 + len(drafts)]


def test_drafts_may_complete_the_answer(backend: Backend, words: GrammarVocabulary) -> None:
    state = backend.compile(Constraint(ConstraintKind.CHOICE, choices=("yes please",))).start()
    drafts = words.tokenizer.encode("yes please")
    bits = blank(1 + len(drafts), words.vocab_size)
    state.fill_mask(bits, drafts)
    assert set(allowed_ids(bits[-1], words.vocab_size).tolist()) == set(words.end_ids)
    assert not state.must_stop and takes(state, words, "yes please")


def test_a_token_that_is_not_allowed_fails_the_state(backend: Backend, words: GrammarVocabulary) -> None:
    state = backend.compile(Constraint(ConstraintKind.REGEX, "abc")).start()
    state.accept(words.tokenizer.encode("zebra"))
    assert not state.must_stop and isinstance(state.error, InvalidRequest) and "after" in state.error.public


@pytest.mark.parametrize("seed", range(6))
def test_a_random_walk_through_the_masks_gives_a_valid_answer(
    backend: Backend, words: GrammarVocabulary, seed: int
) -> None:
    """No model at all: any token that the mask allows, with and without jumps."""
    shape = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["alpha", "beta", "gamma"]},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 300}, "maxItems": 3},
            "code": {"type": "string", "pattern": "^[a-c]{2}-[0-9]{2}$"},
        },
        "required": ["kind", "sizes", "code"],
        "additionalProperties": False,
    }
    grammar = backend.compile(schema(shape))
    for jumps in (True, False):
        chance, state, tokens = random.Random(seed), grammar.start(), []
        while not state.must_stop:
            tokens_now = state.forced_tokens() if jumps else []
            tokens_now = tokens_now or [chance.choice(sorted(allowed(state, words)))]
            state.accept(tokens_now)
            tokens += tokens_now
        answer = json.loads(words.tokenizer.decode(tokens))
        assert answer["kind"] in ("alpha", "beta", "gamma") and len(answer["sizes"]) <= 3
        assert all(-3 <= size <= 300 for size in answer["sizes"]) and answer["code"][2] == "-"


@pytest.mark.parametrize(
    "constraint, says",
    [
        (schema({"properties": {"a": {"items": {"contains": {}}}}}), r"#/properties/a/items: .*contains"),
        (
            schema({"items": {"type": "array", "uniqueItems": True, "minItems": 2}}),
            r"#/items: uniqueItems with minItems 2 needs items that an enum lists",
        ),
        (
            schema({"items": {"propertyNames": {"pattern": "a", "maxLength": 3}}}),
            "#/items: propertyNames must be an enum",
        ),
        (schema({"anyOf": [{"type": "null"}, {"if": {}, "then": {}}]}), r"#/anyOf/1: .*if, then"),
        (schema({"properties": {"a/b": {"not": {}}}}), r"#/properties/a~1b: not supported: not"),
        (
            schema({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "strin"}}}),
            r"#/\$defs/x: .*strin",
        ),
        (schema({"properties": {"a": {"$ref": "#/$defs/y"}}}), r"#/properties/a: .*\$defs/y"),
        (schema({"items": {"type": "string", "pattern": "a(b"}}), r"#/items: character 2: unclosed group"),
        (schema({"items": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}), r"#/items: oneOf .*use anyOf"),
        (
            schema(
                {
                    "properties": {"age": {"minimum": 5, "maximum": 3, "type": "integer"}},
                    "type": "object",
                    "required": ["age"],
                }
            ),
            "#: .*'age' is unsatisfiable",
        ),
        (schema(PERSON | {"properties": {"age": {}}}), "#: 'first_name' is required, but no value is valid for it"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}), "its references form a loop"),
        (schema({"type": "object", "minProperties": 3}), r"#: minProperties"),
        (schema(False), "#: no value is valid"),
        (schema([1]), r"#: a schema must be an object, not \[1\]"),
        (Constraint(ConstraintKind.SCHEMA, '{"type":\n "object",}'), "line 2, column 11"),
        (Constraint(ConstraintKind.SCHEMA, '{"not":' * 5000 + "{}" + "}" * 5000), "nested too deeply"),
        (Constraint(ConstraintKind.REGEX, "ab(c"), "character 3: unclosed group"),
        (Constraint(ConstraintKind.REGEX, "a(?=b)"), "character 2: look-around"),
        (Constraint(ConstraintKind.REGEX, "\ud800"), "not valid Unicode"),
        (Constraint(ConstraintKind.LARK, 'start: x\nx: "a" oops'), 'line 2, column 4: unknown name: "oops"'),
        (Constraint(ConstraintKind.EBNF, 'root ::= "a" b'), "Rule 'b' not found"),
        (Constraint(ConstraintKind.EBNF, 'root := "a"'), "Expected ::= at line 1"),
    ],
)
def test_a_constraint_that_cannot_be_compiled_is_refused_with_the_position(
    backend: Backend, constraint: Constraint, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"cannot be compiled: .*{says}") as raised:
        backend.compile(constraint)
    assert raised.value.field == "constraint" and raised.value.status == 400 and "\n" not in raised.value.public


KEYWORDS = (
    "type properties required additionalProperties patternProperties minProperties maxProperties items prefixItems "
    "minItems maxItems additionalItems enum const anyOf oneOf allOf $ref $defs definitions $id $schema pattern format "
    "minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum multipleOf x-guidance title"
)


@pytest.mark.parametrize("keyword", KEYWORDS.split())
def test_a_random_schema_is_refused_or_compiled(backend: Backend, keyword: str) -> None:
    for value in (None, True, -1, 1.5, 1e300, "x", "#", "#/$defs/x", [], [1], [{}], {}, {"x": 1}, {"x": {"$ref": "#"}}):
        for around in ({}, {"format": "date"}, {"minProperties": 2, "additionalProperties": False}):
            try:
                backend.compile(schema({**around, keyword: value})).start().forced_tokens()
            except InvalidRequest as refusal:
                assert "cannot be compiled" in refusal.public


def test_no_answer_is_accepted_by_the_library_alone(backend: Backend, words: GrammarVocabulary) -> None:
    """Where the library is less strict than the schema, we are not."""
    date = backend.compile(schema({"type": "string", "format": "date"}))
    assert takes(date.start(), words, '"2024-02-29"') and not takes(date.start(), words, '"2023-02-29"')
    twice = backend.compile(
        schema({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True})
    )
    assert takes(twice.start(), words, '{"a": 1, "b": "x"}') and not takes(
        twice.start(), words, '{"a": 1, "\\u0061": "x"}'
    )
    lenient = {
        "type": "object",
        "not": {"required": ["a"]},
        "x-guidance": {"lenient": True, "whitespace_flexible": True},
    }
    with pytest.raises(InvalidRequest, match="not supported: not"):
        backend.compile(schema(lenient))
    control = backend.compile(schema({"const": "a\x01"}))
    assert takes(control.start(), words, '"a\\u0001"')


def test_a_tokenizer_with_a_leading_space_forces_no_space(sentencepiece: GrammarVocabulary) -> None:
    backend = open_backend(sentencepiece)
    state = backend.compile(Constraint(ConstraintKind.CHOICE, choices=('{"name":1', '{"name":2'))).start()
    forced = state.forced_tokens()
    spelled = b"".join(sentencepiece.tokenizer.token_bytes(token) for token in forced)
    assert spelled and b'{"name":'.startswith(spelled) and len(forced) < len(spelled)
    state.accept(forced)
    assert state.error is None
    assert max(allowed(state, sentencepiece)) < sentencepiece.tokenizer.num_tokens, (
        "padding of the output is never allowed"
    )


def test_bytes_of_unknown_characters_can_be_forced(sentencepiece: GrammarVocabulary) -> None:
    state = open_backend(sentencepiece).compile(Constraint(ConstraintKind.CHOICE, choices=("ü€a",))).start()
    tokens: list[int] = []
    while not state.must_stop:
        tokens_now = state.forced_tokens() or [min(allowed(state, sentencepiece))]
        state.accept(tokens_now)
        tokens += tokens_now
    assert sentencepiece.tokenizer.decode(tokens, continues=True) == "ü€a"


def test_without_a_tokenizer_or_end_token_there_are_no_grammars(words: GrammarVocabulary) -> None:
    with pytest.raises(GrammarUnavailable, match="has no tokenizer"):
        open_backend(None)
    with pytest.raises(GrammarUnavailable, match="no end-of-text token"):
        open_backend(GrammarVocabulary(words.tokenizer, words.vocab_size, ()))


def test_masks_are_as_wide_as_the_models_output() -> None:
    assert blank(2, 64).shape == (2, 2) and blank(2, 65).shape == (2, 3)
    bits = blank(1, 65)
    bits[0, 0], bits[0, 2] = 0b101, 0xFFFFFFFF
    assert np.array_equal(allowed_ids(bits[0], 65), [0, 2, 64])
