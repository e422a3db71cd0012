"""Streaming parsers: what is in an answer does not depend on how it was cut, and nothing of it is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.text.parsers.registry import all_styles
from quire.text.parsers.style import ArgumentsPiece, CallStart, Piece, TextPiece, ThoughtPiece
from tests.text.parsers.answers import OSLO, call
from tests.text.parsers.corpus import CORPUS, Case, merged, parsed
from tests.text.parsers.marked_answers import called

pytestmark = pytest.mark.pure

# What marks, calls and near misses are made of.
SHREDS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>",
    "[THINK]", "[/THINK]", "```", "```json", '{"name": "weather", "arguments": {"a": "}"}}', '{"name": "', '"name"',
    '"arguments"', '"parameters": ', "weather", "null", '"', ": ", "{", "}", "[", "]", ",", ";", "\\", "\n", "  ", "<",
    "<tool", "é👍", "x", "7", "<|tool_call|>", "<TOOLCALL>", "<tool_calls>", "<|START_ACTION|>", "<|END_ACTION|>",
    '"tool_name": "fly"', "<|tools_prefix|>", '{"weather": {}}', "<function=", "weather>", "<parameter=", "city>",
    "</parameter>", "</function>", "<seed:tool_call>", "</seed:tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "weather(", "city=", "'", ")", "<function_calls>", "</function_calls>", "<|python_start|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions.", ":0", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', '<parameter name="', '">',
    "</invoke>", "<|start|>", "assistant", "<|channel|>", "analysis", "commentary", "final", " to=", "<|constrain|>",
    "<|message|>", "<|end|>", "<|call|>",
    "<|tool_call>", "<tool_call|>", "call:", "weather{", "city:", '<|"|>', "<|channel>", "thought", "<channel|>",
)  # fmt: skip


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: f"{case.style}: {case.says}")
def test_an_answer_has_in_it_what_it_has(case: Case) -> None:
    assert parsed(case.parser(), [case.text]) == case.pieces
    assert parsed(case.parser(), case.text) == case.pieces  # letter by letter
    for place in range(1, len(case.text)):
        assert parsed(case.parser(), [case.text[:place], case.text[place:]]) == case.pieces, place


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_how_an_answer_is_cut_changes_nothing(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CORPUS))
    assert parsed(case.parser(), data.draw(cut(case.text))) == case.pieces


@settings(max_examples=500, deadline=None)
@given(st.data(), st.sampled_from(sorted(all_styles())), st.booleans(), st.booleans())
def test_whatever_comes_is_cut_invariant_and_not_lost(
    data: st.DataObject, style: str, thinks: bool, inside: bool
) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(SHREDS), max_size=14)))
    case = Case(style, "", text, [], thinks, thinks and inside)
    pieces = parsed(case.parser(), [text])
    assert parsed(case.parser(), text) == pieces
    assert parsed(case.parser(), data.draw(cut(text))) == pieces
    if style == "harmony":
        return  # its own test is below
    rest = text
    for (
        piece
    ) in pieces:  # each piece is in the answer, in the same order; names and arguments may be decoded or made up
        if not isinstance(piece, CallStart) and not (isinstance(piece, ArgumentsPiece) and piece.text not in rest):
            assert piece.text in rest
            rest = rest[rest.index(piece.text) + len(piece.text) :]
    if not thinks and not any(isinstance(piece, CallStart) for piece in pieces):
        assert pieces == ([TextPiece(text)] if text else [])


KINDS = {"analysis": ThoughtPiece, "commentary": TextPiece, "final": TextPiece}
WORDS = st.text("ab<|>\n é{}", min_size=1, max_size=8).map(str.strip).filter(bool)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.tuples(st.sampled_from(sorted(KINDS)), WORDS), min_size=1, max_size=5))
def test_every_message_is_thought_or_text_by_its_channel(data: st.DataObject, messages: list[tuple[str, str]]) -> None:
    text = "<|start|>assistant".join(f"<|channel|>{channel}<|message|>{words}<|end|>" for channel, words in messages)
    pieces = parsed(Case("harmony", "", "", []).parser(), data.draw(cut(text)))
    for kind in (ThoughtPiece, TextPiece):
        found = "".join(piece.text for piece in pieces if isinstance(piece, kind))
        assert found == "\n\n".join(words for channel, words in messages if KINDS[channel] is kind)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_how_a_damaged_answer_is_cut_changes_nothing(data: st.DataObject) -> None:
    case, other = data.draw(st.sampled_from(CORPUS)), data.draw(st.sampled_from(CORPUS))
    begin = data.draw(st.integers(0, len(case.text)))
    end = min(len(case.text), begin + data.draw(st.integers(0, 6)))
    there = data.draw(st.integers(0, len(other.text)))
    text = case.text[:begin] + other.text[there : there + data.draw(st.integers(0, 20))] + case.text[end:]
    for is_cut_off in (False, True):
        pieces = parsed(case.parser(), [text], is_cut_off)
        assert parsed(case.parser(), text, is_cut_off) == pieces
        assert parsed(case.parser(), data.draw(cut(text)), is_cut_off) == pieces


def is_beginning(pieces: list[Piece], whole: list[Piece]) -> bool:
    """Are these the whole's first pieces, the last of them as far as it came? Whitespace at an end may be a mark's."""
    if not pieces:
        return True
    if len(pieces) > len(whole) or pieces[:-1] != whole[: len(pieces) - 1]:
        return False
    last, full = pieces[-1], whole[len(pieces) - 1]
    if isinstance(last, CallStart) or isinstance(full, CallStart):
        return last == full
    return type(last) is type(full) and full.text.startswith(last.text.rstrip())


WITH_CALLS = [case for case in CORPUS if any(isinstance(piece, CallStart) for piece in case.pieces)]


@pytest.mark.parametrize("case", WITH_CALLS, ids=lambda case: f"{case.style}: {case.says}")
def test_of_an_answer_that_is_cut_off_no_part_of_a_mark_or_a_call_is_text(case: Case) -> None:
    for end in range(len(case.text)):
        found = parsed(case.parser(), case.text[:end], is_cut_off=True)
        blank = [piece for piece in found if isinstance(piece, CallStart) or piece.text.strip()]
        assert is_beginning(blank, case.pieces), case.text[:end]


@pytest.mark.parametrize(
    "style, text, pieces",
    [
        ("hermes", '<tool_call>{"name": "weather"', [CallStart("weather")]),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Os', [*call("weather", '{"city": "Os')]),
        (
            "hermes",
            '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"O\\u00f',
            call("weather", '{"city": "O'),
        ),
        ("hermes", '<tool_call>{"arguments": {"city": "Oslo"}, "na', []),
        ("hermes", 'Well. <tool_call>{"name": "weath', [TextPiece("Well.")]),
        ("hermes", "Well. <tool_c", [TextPiece("Well.")]),
        ("hermes", "a < b", [TextPiece("a < b")]),
        ("llama3", '{"name": "weather", "parameters": ', [CallStart("weather")]),
        ("llama3", '{"name": "we', []),
        ("llama3", '{"name": "Bo', [TextPiece('{"name": "Bo')]),
        ("llama3", '{"ti', [TextPiece('{"ti')]),
        ("mistral", "[TOOL_CALLS]weath", []),
        ("mistral", "[TOOL_CALLS]weather[AR", [CallStart("weather")]),
        ("mistral", "[hello", [TextPiece("[hello")]),
        ("generic", '```json\n{"name": "get_time", ', [CallStart("get_time")]),
        ("generic", "```py", [TextPiece("```py")]),
        ("apertus", '<|tools_prefix|>[{"weather"', [CallStart("weather")]),
        ("apertus", '[{"fl', [TextPiece('[{"fl')]),
        ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=ci", [CallStart("weather")]),
        ("qwen3_coder", "<tool_call>\n<function=weath", []),
        ("qwen3_coder", "<function=weath", []),
        ("qwen3_coder", "<function=walk", [TextPiece("<function=walk")]),
        (
            "qwen3_coder",
            "<tool_call>\n<function=write_file>\n<parameter=text>\nOne.\n</par",
            call("write_file", '{"text": "One.'),
        ),
        ("glm", "<tool_call>weather\n<arg_k", [CallStart("weather")]),
        ("glm", "<tool_call>wea", []),
        ("pythonic", "[weath", []),
        ("pythonic", "[hello", [TextPiece("[hello")]),
        ("pythonic", "[weather(city='Os", [CallStart("weather")]),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```js", [CallStart("weather")]),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool", []),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.wea", []),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:", [CallStart("weather")]),
        ("kimi", "I see.<|tool_calls_sec", [TextPiece("I see.")]),
        ("minimax", '<minimax:tool_call>\n<invoke name="wea', []),
        ("minimax", '<minimax:tool_call>\n<invoke name="weather">\n<param', [CallStart("weather")]),
        (
            "minimax",
            '<minimax:tool_call>\n<invoke name="write_file">\n<parameter name="text">One.</p',
            call("write_file", '{"text": "One.'),
        ),
        ("harmony", "<|channel|>commentary to=functions.wea", []),
        ("harmony", "<|channel|>commentary to=functions.weather <|constr", [CallStart("weather")]),
        ("harmony", " to=functions.weather<|channel|>comm", [CallStart("weather")]),
        ("harmony", f"{called('weather', OSLO[:-3], '')}", call("weather", OSLO[:-3])),
        ("harmony", "<|channel|>analysis<|message|>Hm.<|en", [ThoughtPiece("Hm.")]),
        ("harmony", "<|channel|>final<|message|>Yes. <|end|><|start|>assis", [TextPiece("Yes.")]),
        ("harmony", "<|chan", []),
        ("gemma4", '<|tool_call>call:weather{city:<|"|>Os', call("weather", '{"city": "Os')),
        ("gemma4", "<|tool_call>call:wea", []),
    ],
)
def test_a_call_that_is_cut_off_comes_as_far_as_it_is_known(style: str, text: str, pieces: list[Piece]) -> None:
    case = Case(style, "", text, pieces)
    assert parsed(case.parser(), [text], is_cut_off=True) == pieces
    assert parsed(case.parser(), text, is_cut_off=True) == pieces


def test_half_a_mark_of_a_thought_that_is_cut_off_is_neither_thought_nor_text() -> None:
    case = Case("hermes", "", "", [], thinks=True)
    assert parsed(case.parser(), ["<thi"], is_cut_off=True) == []
    assert parsed(case.parser(), ["<think>Hm.\n</thi"], is_cut_off=True) == [ThoughtPiece("Hm.")]
    assert parsed(case.parser(), ["<think>Hm.</think>Yes.<tool_"], is_cut_off=True) == [
        ThoughtPiece("Hm."),
        TextPiece("Yes."),
    ]


def test_arguments_come_as_they_are_written() -> None:
    parser = Case("hermes", "", "", []).parser()
    assert parser.push('<tool_call>\n{"name": "weather", "argu') == []
    assert parser.push('ments": {"ci') == [CallStart("weather"), ArgumentsPiece('{"ci')]
    assert parser.push('ty": "Os') == [ArgumentsPiece('ty": "Os')]
    assert parser.push('lo"}') == [ArgumentsPiece('lo"}')]
    assert parser.push("}\n</tool_call>") == [] and parser.flush() == []


def test_text_is_held_back_no_longer_than_it_may_become_a_mark() -> None:
    parser = Case("hermes", "", "", []).parser()
    assert parser.push("a <too") == [TextPiece("a")]
    assert merged(parser.push("ls> b")) == [TextPiece(" <tools> b")]
    assert parser.push(" c\n") == [TextPiece(" c")] and parser.push("d") == [TextPiece("\nd")]


def test_an_answer_in_json_is_not_kept_until_its_end() -> None:
    parser = Case("llama3", "", "", []).parser()
    assert merged(parser.push('{"title":')) == [TextPiece('{"title":')]
    assert parser.push(' "x') == [TextPiece(' "x')]
