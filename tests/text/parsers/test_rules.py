"""When a call is required, the grammar lets nothing else through, and what it lets through always parses."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from quire.text.detokenize import Detokenizer
from quire.text.parsers.channels import CHANNELS
from quire.text.parsers.compose import constraint_for, parser_for
from quire.text.parsers.reasoning import KNOWN, ReasoningMarks
from quire.text.parsers.registry import all_styles, by_name
from quire.text.parsers.style import ArgumentsPiece, CallStart, Piece, TextPiece, ThoughtPiece
from quire.text.tokenizer import Tokenizer
from quire.types.chat import Tool, ToolChoice
from quire.types.errors import InvalidRequest
from tests.text.parsers.corpus import merged
from tests.text.parsers.guided import CONTROL, USER_DEFINED, Guide, with_marks

pytestmark = pytest.mark.pure

THINK = KNOWN[0]
MARKS = [*dict.fromkeys(mark for family in (*all_styles().values(), *KNOWN) for mark in family.marks)]


STRING = {"type": "string"}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


ITEM = _object({"id": {"type": "integer", "minimum": 1}, "note": {"type": ["string", "null"]}})
ITEMS = {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 3}
CHILDREN = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
NODE = _object({"value": {"type": "boolean"}, "children": CHILDREN}, additionalProperties=False)
LATITUDE = {"type": "number", "minimum": -90, "maximum": 90}
CLOSED = {"additionalProperties": False}
TOOLS = (
    Tool("get_time"),
    Tool("weather", "Of a city", _object({"city": STRING, "unit": {"enum": ["C", "F"]}})),
    Tool("weather_at", "", _object({"lat": LATITUDE}, **CLOSED)),
    Tool("order", "", _object({"items": ITEMS}, **{"$defs": {"item": ITEM}})),
    Tool("tree", "", {"$ref": "#/$defs/node", "$defs": {"node": NODE}}),
    Tool(
        "either", "", {"anyOf": [_object({"a": {"const": 1}}), _object({"b": {**STRING, "pattern": "^[a-z]{2,5}$"}})]}
    ),
    Tool("tags", "", {"type": "object", "additionalProperties": {**STRING, "maxLength": 5}}),
    Tool("größe-3.x", "", _object({'größe "m"': {**STRING, "format": "date"}}, **CLOSED), strict=True),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


@pytest.fixture(scope="module")
def guides(metadata: dict[str, Any]) -> dict[str, Guide]:
    """The marks are no tokens, special tokens, or tokens that are not special: models have them in all three ways."""
    return {
        "letters": Guide(Tokenizer.from_gguf(metadata)),
        "special": Guide(with_marks(metadata, MARKS, CONTROL)),
        "added": Guide(with_marks(metadata, MARKS, USER_DEFINED)),
    }


WAYS = ("letters", "special", "added")
TEXT_ENDS = {"qwen3_coder": "</parameter>", "seed_oss": "</parameter>", "glm": "</arg_value>"}
TEXT_ENDS |= {"glm47": "</arg_value>", "minimax": "</parameter>"}
TEXT_ENDS |= {"gemma4": '<|"|>', "function_gemma": "<escape>"}


def tokens_of(guide: Guide) -> dict[str, int]:
    return guide.tokenizer.tokens_named(MARKS)


def read(guide: Guide, style: str, ids: list[int], **more: Any) -> list[Piece]:
    """What a client is told of these tokens, one after the other."""
    detokenizer = Detokenizer(guide.tokenizer, shown=frozenset(tokens_of(guide).values()))
    parser = parser_for(by_name(style), more.get("reasoning"), TOOLS, more.get("begun", ""))
    pieces = [piece for token in ids for piece in parser.push(detokenizer.push([token]))]
    return merged(pieces + parser.push(detokenizer.flush()) + parser.flush())


def check_calls(pieces: list[Piece]) -> list[str]:
    """Names of calls whose arguments keep to their schemas. There is nothing but calls."""
    names = [piece.name for piece in pieces[::2] if isinstance(piece, CallStart)]
    texts = [piece.text for piece in pieces[1::2] if isinstance(piece, ArgumentsPiece)]
    assert names and len(names) == len(texts) and 2 * len(names) == len(pieces), pieces
    for name, text in zip(names, texts, strict=True):
        arguments = json.loads(text)
        assert isinstance(arguments, dict)
        jsonschema.validate(arguments, dict(BY_NAME[name].parameters))
    return names


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", sorted(all_styles()))
def test_whatever_the_grammar_allows_parses_and_keeps_to_the_schema(
    guides: dict[str, Guide], style: str, way: str
) -> None:
    guide, chance = guides[way], random.Random(f"{style} {way}")
    seen: set[str] = set()
    for walk in range(12):
        choice = ToolChoice("required", name=chance.choice((None, chance.choice(TOOLS).name)), parallel=walk % 2 == 0)
        constraint = constraint_for(by_name(style), TOOLS, choice, tokens_of(guide))
        ids = guide.walk(constraint, chance, text_end=TEXT_ENDS.get(style))
        names = check_calls(read(guide, style, ids))
        assert choice.name in (None, *names) and (len(names) == 1 or (choice.parallel and choice.name is None))
        seen |= set(names)
    assert len(seen) >= 4  # it was not always the same


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_thinks_may_think_before_it_calls(guides: dict[str, Guide], way: str, begun: bool) -> None:
    guide, style = guides[way], by_name("hermes")
    constraint = constraint_for(style, TOOLS, ToolChoice("required"), tokens_of(guide), THINK, "<think>" * begun)
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    thought = ("" if begun else "<think>") + "\nHm <tool> {\n</think>"
    assert guide.accepts(constraint, f"{thought}\n\n{call}") and guide.accepts(constraint, thought + call)
    assert not guide.accepts(constraint, f"{thought}\n\nNo.") and not guide.accepts(constraint, thought)
    assert guide.accepts(constraint, call) is not begun  # what was begun must come to its end
    chance = random.Random(way)
    for _ in range(8):
        pieces = read(
            guide, "hermes", guide.walk(constraint, chance, thought), reasoning=THINK, begun="<think>" * begun
        )
        assert pieces[0] == ThoughtPiece("Hm <tool> {") and check_calls(pieces[1:])


@pytest.mark.parametrize("marks", [marks for marks in KNOWN if not marks.more], ids=lambda marks: marks.opening)
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_thought_has_its_grammar(guides: dict[str, Guide], way: str, marks: ReasoningMarks) -> None:
    guide, thought, call = guides[way], f"Hm [x].{marks.closing}", '{"name": "get_time", "parameters": {}}'
    for begun, opening in ((marks.opening + marks.label, ""), ("", marks.opening + marks.label)):
        constraint = constraint_for(by_name("llama3"), TOOLS, ToolChoice("required"), tokens_of(guide), marks, begun)
        assert guide.accepts(constraint, f"{opening}{thought}\n\n{call}")
        assert not guide.accepts(constraint, f"{opening}{thought}\n\nNo.")
        assert not guide.accepts(constraint, f"{opening}Hm.")


@pytest.mark.parametrize("way", WAYS)
def test_gpt_oss_may_think_in_messages_before_it_calls(guides: dict[str, Guide], way: str) -> None:
    guide, choice = guides[way], ToolChoice("required")
    head, next_message = "<|channel|>analysis<|message|>", "<|start|>assistant"
    after = "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}"
    before = " to=functions.get_time<|channel|>commentary <|constrain|>json<|message|>{}"
    for begun in ("", head, "<|channel|>final<|message|>It"):
        constraint = constraint_for(by_name("harmony"), TOOLS, choice, tokens_of(guide), CHANNELS, begun)
        opening = "" if begun else head
        for call in (after, before):
            assert guide.accepts(constraint, f"{opening}Hm <x>.<|end|>{next_message}{call}")
            assert guide.accepts(constraint, f"{opening}a<|end|>{next_message}{head}b<|end|>{next_message}{call}")
            assert guide.accepts(constraint, call) is not bool(begun)
        assert not guide.accepts(constraint, f"{opening}Hm.<|end|>{next_message}<|channel|>final<|message|>No.")
        ids = guide.encode(f"{opening}Hm.<|end|>{next_message}{after}")
        kind = TextPiece if "final" in begun else ThoughtPiece
        assert read(guide, "harmony", ids, begun=begun) == [kind("Hm."), CallStart("get_time"), ArgumentsPiece("{}")]


GOOD = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>',
    "generic": '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>',
    "llama3": '{"name": "weather", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": %s}]',
    "granite": '<|tool_call|>[{"name": "weather", "arguments": %s}]',
    "phi4": '<|tool_call|>[{"name": "weather", "arguments": %s}]<|/tool_call|>',
    "nemotron": '<TOOLCALL>[{"name": "weather", "arguments": %s}]</TOOLCALL>',
    "hunyuan": '<tool_calls>[{"name": "weather", "arguments": %s}]</tool_calls>',
    "apertus": '<|tools_prefix|>[{"weather": %s}]<|tools_suffix|>',
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n%s\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>%s<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>%s"
        "<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "harmony": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>%s",
    "command": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": %s}\n]<|END_ACTION|>'
    ),
}
ARGUMENTS = '{"city": "Oslo", "unit": "C"}'


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", sorted(GOOD))
def test_the_grammar_is_of_the_form_that_the_model_was_taught(guides: dict[str, Guide], style: str, way: str) -> None:
    guide, written = guides[way], GOOD[style]
    if style == "mistral" and way != "letters":
        written = "[TOOL_CALLS]weather[ARGS]%s"
    constraint = constraint_for(by_name(style), TOOLS, ToolChoice("required"), tokens_of(guide))
    assert guide.accepts(constraint, written % ARGUMENTS)
    assert guide.accepts(constraint, written % '{"city":"Oslo","unit":"F"}')
    for bad in ('{"city": "Oslo"}', '{"city": "Oslo", "unit": "K"}', '{"city": 7, "unit": "C"}', "[]", "null", "{"):
        assert not guide.accepts(constraint, written % bad)
    assert not guide.accepts(constraint, (written % ARGUMENTS).replace("weather", "whether"))
    assert not guide.accepts(constraint, written % ARGUMENTS + " and more")
    assert not guide.accepts(constraint, "No.") and not guide.accepts(constraint, "")


TWO = {
    "hermes": GOOD["hermes"] + "\n" + GOOD["hermes"],
    "generic": GOOD["generic"] + "\n" + GOOD["generic"],
    "llama3": GOOD["llama3"] + "; " + GOOD["llama3"],
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": %s}, {"name": "weather", "arguments": %s}]',
    "nemotron": '<TOOLCALL>[{"name": "weather", "arguments": %s}, {"name": "weather", "arguments": %s}]</TOOLCALL>',
    "apertus": '<|tools_prefix|>[{"weather": %s}, {"weather": %s}]<|tools_suffix|>',
    "deepseek_v31": GOOD["deepseek_v31"].replace("<｜tool▁calls▁end｜>", "")
    + GOOD["deepseek_v31"].replace("<｜tool▁calls▁begin｜>", ""),
    "kimi": GOOD["kimi"].replace("<|tool_calls_section_end|>", "")
    + GOOD["kimi"].replace("<|tool_calls_section_begin|>", "").replace(":0", ":1"),
}
WITHOUT_JSON = {
    "pythonic": '[weather(city="%s", unit="%s")]',
    "lfm2": '<|tool_call_start|>[weather(city="%s", unit="%s")]<|tool_call_end|>',
    "olmo3": '<function_calls>weather(city="%s", unit="%s")</function_calls>',
    "gemma4": '<|tool_call>call:weather{city:<|"|>%s<|"|>,unit:<|"|>%s<|"|>}<tool_call|>',
    "function_gemma": (
        "<start_function_call>call:weather{city:<escape>%s<escape>,unit:<escape>%s<escape>}<end_function_call>"
    ),
}
OTHER_TOOLS = (
    Tool("weather", "", {**_object({"city": STRING, "unit": {"enum": ["C", "F"]}}), "required": ["city"]}),
    Tool("go", "", {"type": "object", "properties": {"far": {"type": "boolean"}, "n": {"type": "integer"}}}),
    Tool("note", "", _object({"lines": {"type": "array", "items": STRING}, "at": _object({"x": {"type": "integer"}})})),
)
OTHER_CALLS = {
    "pythonic": (
        '[weather(city="x")]',
        "[go()]",
        "[go(n=1)]",
        "[go(far=true, n=1)]",
        '[note(lines=["a"], at={"x": 1})]',
    ),
    "gemma4": (
        '<|tool_call>call:weather{city:<|"|>x<|"|>}<tool_call|>',
        "<|tool_call>call:go{}<tool_call|>",
        "<|tool_call>call:go{n:1}<tool_call|>",
        "<|tool_call>call:go{far:true,n:1}<tool_call|>",
        '<|tool_call>call:note{lines:[<|"|>a<|"|>,<|"|>b<|"|>],at:{<|"|>x<|"|>:1}}<tool_call|>',
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", sorted(WITHOUT_JSON))
def test_arguments_in_another_notation_keep_to_the_schema(guides: dict[str, Guide], style: str, way: str) -> None:
    guide, written = guides[way], WITHOUT_JSON[style]
    constraint = constraint_for(by_name(style), TOOLS, ToolChoice("required"), tokens_of(guide))
    one = written % ("Oslo, (S)", "C")
    assert guide.accepts(constraint, one)
    for bad in (written % ("Oslo", "K"), one.replace("unit", "size"), one.replace("weather", "whether"), f"{one} So."):
        assert not guide.accepts(constraint, bad)


@pytest.mark.parametrize("style", sorted(OTHER_CALLS))
def test_what_is_not_required_may_be_left_out(guides: dict[str, Guide], style: str) -> None:
    guide = guides["letters"]
    constraint = constraint_for(by_name(style), OTHER_TOOLS, ToolChoice("required"), tokens_of(guide))
    for written in OTHER_CALLS[style]:
        assert guide.accepts(constraint, written), written
    for name, other in (("city", "town"), ("n=", "m="), ("n:", "m:"), ("true", "1"), ("lines", "line")):
        for written in OTHER_CALLS[style]:
            assert name not in written or not guide.accepts(constraint, written.replace(name, other))


WITH_TAGS = {
    "qwen3_coder": """<tool_call>
<function=weather>
<parameter=city>
%s
</parameter>
<parameter=unit>
%s
</parameter>
</function>
</tool_call>""",
    "seed_oss": """<seed:tool_call>
<function=weather>
<parameter=city>%s</parameter>
<parameter=unit>%s</parameter>
</function>
</seed:tool_call>""",
    "glm": """<tool_call>weather
<arg_key>city</arg_key>
<arg_value>%s</arg_value>
<arg_key>unit</arg_key>
<arg_value>%s</arg_value>
</tool_call>""",
    "glm47": (
        "<tool_call>weather<arg_key>city</arg_key><arg_value>%s</arg_value><arg_key>unit</arg_key>"
        "<arg_value>%s</arg_value></tool_call>"
    ),
    "minimax": """<minimax:tool_call>
<invoke name="weather">
<parameter name="city">%s</parameter>
<parameter name="unit">%s</parameter>
</invoke>
</minimax:tool_call>""",
}
JOINTS = {"glm47": "", "minimax": ""}  # between calls; others have a newline


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", sorted(WITH_TAGS))
def test_arguments_in_tags_keep_to_the_schema(guides: dict[str, Guide], style: str, way: str) -> None:
    guide, written = guides[way], WITH_TAGS[style]
    constraint = constraint_for(by_name(style), TOOLS, ToolChoice("required", parallel=True), tokens_of(guide))
    one = written % ('Oslo "S"\n<x>', "C")
    two = JOINTS.get(style, "\n").join((one, written % ("", "F")))
    two = two.replace("\n</minimax:tool_call><minimax:tool_call>", "")  # which stand around all calls
    assert guide.accepts(constraint, one) and guide.accepts(constraint, two)
    for bad in (written % ("Oslo", "K"), one.replace("unit", "size"), one.replace("weather", "whether"), f"{one} So."):
        assert not guide.accepts(constraint, bad)
    space = {"seed_oss": "seed:", "minimax": "minimax:"}.get(style, "")
    tags = '{"name": "tags", "arguments": {"a": "b"}}'  # its schema is more than a list of parameters
    tags = tags if style == "glm47" else f"\n{tags}\n"
    assert guide.accepts(constraint, f"<{space}tool_call>{tags}</{space}tool_call>")


@pytest.mark.parametrize("style", sorted(TWO))
def test_several_calls_come_only_where_they_are_allowed(guides: dict[str, Guide], style: str) -> None:
    guide, two = guides["letters"], TWO[style] % (ARGUMENTS, ARGUMENTS)
    for choice, allowed in (
        (ToolChoice("required"), True),
        (ToolChoice("required", parallel=False), False),
        (ToolChoice("required", name="weather"), False),
    ):
        constraint = constraint_for(by_name(style), TOOLS, choice, tokens_of(guide))
        assert guide.accepts(constraint, two) is allowed
        assert guide.accepts(constraint, GOOD[style] % ARGUMENTS)
    other = constraint_for(by_name(style), TOOLS, ToolChoice("required", name="get_time"), tokens_of(guide))
    assert not guide.accepts(other, GOOD[style] % ARGUMENTS)


def test_a_schema_that_no_grammar_can_keep_is_kept_as_far_as_it_can_unless_the_tool_is_strict(
    guides: dict[str, Guide],
) -> None:
    odd = _object({"n": {"oneOf": [{"type": "integer"}, {"type": "number"}], "format": "int32"}})
    guide, style = guides["letters"], by_name("llama3")
    constraint = constraint_for(style, [Tool("count", "", odd)], ToolChoice("required"), {})
    assert guide.accepts(constraint, '{"name": "count", "parameters": {"n": 3}}')
    assert not guide.accepts(constraint, '{"name": "count", "parameters": {"n": "3"}}')
    with pytest.raises(AssertionError, match="oneOf"):
        guide.matcher(constraint_for(style, [Tool("count", "", odd, strict=True)], ToolChoice("required"), {}))


def test_what_cannot_be_required_is_refused() -> None:
    for style in all_styles().values():
        with pytest.raises(InvalidRequest, match=r"'fly'; the tools are: get_time, weather") as error:
            style.rules(TOOLS[:2], ToolChoice("required", name="fly"), {})
        assert error.value.field == "tool_choice"
        with pytest.raises(InvalidRequest, match="'list' are 'array'") as error:
            style.rules([Tool("list", "", {"type": "array"})], ToolChoice("required"), {})
        assert error.value.field == "tools"
