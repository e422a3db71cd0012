"""Answers as models write them, well and badly, with what is in them. One corpus for every style."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from quire.text.parsers.compose import parser_for
from quire.text.parsers.reasoning import KNOWN
from quire.text.parsers.registry import by_name
from quire.text.parsers.style import ArgumentsPiece, Parser, Piece, TextPiece, ThoughtPiece
from quire.types.chat import Tool
from tests.text.parsers.answers import NASTY, OSLO, PARIS, QUOTED, SPREAD, call, marked, written
from tests.text.parsers.marked_answers import DEEPSEEK, HARMONY, KIMI, KIMI_THOUGHTS
from tests.text.parsers.tagged_answers import GLM, MINIMAX, in_tags

FILE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"}, "text": {"type": "string"}, "lines": {"type": "integer"},
        "deep": {"type": "object"}, "mode": {"type": ["string", "null"]},
        "tags": {"type": "array"}, "force": {"type": "boolean"},
    },
}  # fmt: skip
TOOLS = (Tool("weather"), Tool("get_time"), Tool("write_file", "", FILE))
THINK = KNOWN[0]
BY_OPENING = {marks.opening: marks for marks in reversed(KNOWN)}


class Case(NamedTuple):
    style: str
    says: str  # what the case shows
    text: str
    pieces: list[Piece]
    thinks: bool = False
    begins_in_thought: bool = False
    answer: str = ""  # the mark before the text after a thought

    def parser(self) -> Parser:
        own = {
            "mistral": "[THINK]",
            "command": "<|START_THINKING|>",
            "seed_oss": "<seed:think>",
            "gemma4": "<|channel>",
        }
        own["apertus"] = "<|inner_prefix|>"
        marks = BY_OPENING[own.get(self.style, "<think>")] if self.thinks else None
        if marks is not None and self.style == "kimi":
            marks = next(marks for marks in KNOWN if marks.call)
        if self.answer:
            marks = next(marks for marks in KNOWN if marks.answer and marks.answer[0] == self.answer)
        begun = marks.opening + marks.label if marks is not None and self.begins_in_thought else ""
        return parser_for(by_name(self.style), marks, TOOLS, begun)


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one piece."""
    out: list[Piece] = []
    for piece in pieces:
        last = out[-1] if out else None
        if isinstance(piece, ArgumentsPiece | TextPiece | ThoughtPiece) and type(piece) is type(last):
            out[-1] = type(piece)(last.text + piece.text)  # type: ignore[union-attr]
        else:
            out.append(piece)
    return out


def parsed(parser: Parser, parts: Iterable[str], is_cut_off: bool = False) -> list[Piece]:
    return merged([piece for part in parts for piece in parser.push(part)] + parser.flush(is_cut_off))


MARK_WITHIN = '{"text": "</tool_call><tool_call>"}'

HERMES = [
    ("only text", "It is sunny.\n\nIs it?", [TextPiece("It is sunny.\n\nIs it?")]),
    ("whitespace at both ends of a text is text", "\n hi \n", [TextPiece("\n hi \n")]),
    ("one call", marked(written("weather", PARIS)), call("weather", PARIS)),
    (
        "two calls after a text",
        f"Let me see.\n\n{marked(written('weather', PARIS), written('get_time'))}",
        [TextPiece("Let me see."), *call("weather", PARIS), *call("get_time")],
    ),
    (
        "text after a call",
        f"<tool_call>{written('get_time')}</tool_call>\n\nDone  <b>now</b>. ",
        [*call("get_time"), TextPiece("Done  <b>now</b>. ")],
    ),
    ("arguments before the name", marked(f'{{"arguments": {PARIS}, "name": "weather"}}'), call("weather", PARIS)),
    ("parameters", marked(written("weather", PARIS, "parameters")), call("weather", PARIS)),
    ("braces, escapes, letters of all kinds", marked(written("write_file", NASTY)), call("write_file", NASTY)),
    ("marks within a string", marked(written("write_file", MARK_WITHIN)), call("write_file", MARK_WITHIN)),
    (
        "arguments that are spread over lines",
        marked(f'{{\n  "name" : "weather" ,\n  "arguments" : {SPREAD}\n}}'),
        call("weather", SPREAD),
    ),
    ("arguments within a string", marked(written("weather", QUOTED)), call("weather", OSLO)),
    ("an empty string of arguments", marked(written("get_time", '""')), call("get_time")),
    ("null for arguments", marked('{"arguments": null, "name": "get_time"}'), call("get_time")),
    ("no arguments", marked('{"name": "get_time"}'), call("get_time")),
    (
        "other keys",
        marked(f'{{"id": 7, "type": "function", "name": "weather", "arguments": {OSLO}, "why": {{"a": [1]}}}}'),
        call("weather", OSLO),
    ),
    ("a name with escapes", marked(written("caf\\u00e9")), call("café")),
    ("a tool that is not there", marked(written("fly")), call("fly")),
    ("a brace too many", f"<tool_call>{written('get_time')}}}</tool_call>", call("get_time")),
    ("a brace too few", f"<tool_call>{written('get_time')[:-1]}\n</tool_call>", call("get_time")),
    ("no end mark", f"<tool_call>\n{written('weather', OSLO)}\n", call("weather", OSLO)),
    (
        "no end mark before the next call",
        f"<tool_call>{written('get_time')}\n<tool_call>{written('fly')}",
        [*call("get_time"), *call("fly")],
    ),
    (
        "a list of calls",
        marked(f"[{written('get_time')}, {written('weather', OSLO)}]"),
        [*call("get_time"), *call("weather", OSLO)],
    ),
    ("arguments that were cut off", f"<tool_call>{written('weather', OSLO)[:-5]}", call("weather", OSLO[:-4])),
    ("a call without a mark", f"\n{written('weather', OSLO)}\n</tool_call>", call("weather", OSLO)),
]

NO_CALLS = [
    "a < b and <tool> or <tool_calls> <tool_cal",
    "<tool_call>",
    "<tool_call> is the mark.",
    " <tool_call></tool_call> ",
    '<tool_call>{"name": "wea',
    '<tool_call>\n{"name": 7, "arguments": {}}\n</tool_call>\n',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "weather", "arguments": "no object"}</tool_call>',
    '<tool_call>{"city": "Paris"}</tool_call>',
    "<tool_call>{'name': 'weather'}</tool_call>",
    '<tool_call>{"name" "weather"}</tool_call>',
    '<tool_call>{"name": "weather" "arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {"city": "Oslo"}',
    "<tool_call><tool_call>\n",
    "<tool_call>get_time()</tool_call>",
    '{"name": "Bob", "arguments": {}}',
    '{"name": "get_time"}',
    '{"name": "weather", "colour": "red"}',
    '{"title": "weather", "rows": [{"name": "get_time", "arguments": {}}]}',
    "{}",
    "{",
    '{"name": "get_time", "arguments": ',
    "{{ name }}",
    "``` \n",
]

LLAMA = written("weather", OSLO, "parameters")
LLAMA3 = [
    ("one call", LLAMA, call("weather", OSLO)),
    ("after the tag", f"<|python_tag|>{LLAMA}", call("weather", OSLO)),
    ("after text and the tag", f"Yes. <|python_tag|>{written('fly')}", [TextPiece("Yes."), *call("fly")]),
    (
        "several",
        f"{LLAMA}; {written('get_time', key='parameters')}\n{written('get_time')}",
        [*call("weather", OSLO), *call("get_time"), *call("get_time")],
    ),
    ("with a type", LLAMA.replace("{", '{"type": "function", ', 1), call("weather", OSLO)),
    ("the name as function", LLAMA.replace("name", "function"), call("weather", OSLO)),
    ("text after it", f"{LLAMA}\n\nThere.", [*call("weather", OSLO), TextPiece("There.")]),
    ("code after the tag", "<|python_tag|>print(1)", [TextPiece("<|python_tag|>print(1)")]),
    ("a tool that is not there and has no tag", written("fly"), [TextPiece(written("fly"))]),
]

MISTRAL = [
    ("a list", f"[TOOL_CALLS] [{written('weather', PARIS)}]", call("weather", PARIS)),
    (
        "a list of two, one with an id",
        f'[TOOL_CALLS][{written("weather", PARIS)[:-1]}, "id": "abcdefghi"}}, {{"arguments": {{}}, "name": "fly"}}]',
        [*call("weather", PARIS), *call("fly")],
    ),
    ("named", f"[TOOL_CALLS]weather[ARGS]{PARIS}", call("weather", PARIS)),
    ("named, with an id", f"[TOOL_CALLS]weather[CALL_ID]abc123DEF[ARGS]{PARIS}", call("weather", PARIS)),
    ("named, without a tag", f"[TOOL_CALLS]weather{PARIS}", call("weather", PARIS)),
    (
        "two that are named, after a text",
        f"I look.[TOOL_CALLS]weather[ARGS]{NASTY}[TOOL_CALLS]get_time[ARGS]{{}}",
        [TextPiece("I look."), *call("weather", NASTY), *call("get_time")],
    ),
    ("a list without a mark", f"[{written('weather', PARIS)}]", call("weather", PARIS)),
    ("a list that is text", "[1, 2]", [TextPiece("[1, 2]")]),
    ("words after the mark", "[TOOL_CALLS] come later.", [TextPiece("[TOOL_CALLS] come later.")]),
    ("another tag", "[TOOL_CALLS]weather[NOTES]{}", [TextPiece("[TOOL_CALLS]weather[NOTES]{}")]),
    ("a name alone", "[TOOL_CALLS]weather", [TextPiece("[TOOL_CALLS]weather")]),
    ("half a mark", "a [TOOL", [TextPiece("a [TOOL")]),
]

IN_CODE = f"```json\n{written('get_time')}\n```"
GENERIC = [
    ("a block of code", IN_CODE, call("get_time")),
    ("a block without a language", f"{IN_CODE.replace('json', '')}\n", call("get_time")),
    ("a block of other JSON", '```json\n{"a": 1}\n```', [TextPiece('```json\n{"a": 1}\n```')]),
    ("a block of code that calls nothing", "```python\nprint()\n```", [TextPiece("```python\nprint()\n```")]),
    ("a fence alone", "```js", [TextPiece("```js")]),
    ("a block after text is text", f"So:\n{IN_CODE}", [TextPiece(f"So:\n{IN_CODE}")]),
]

CALL = marked(written("get_time"))
THOUGHTS = [
    (
        "a thought and a text",
        "<think>\nHm.\n\nSo.\n</think>\n\nYes.",
        [ThoughtPiece("Hm.\n\nSo."), TextPiece("Yes.")],
        False,
    ),
    ("a thought and a call", f"<think>\nHm.\n</think>\n\n{CALL}", [ThoughtPiece("Hm."), *call("get_time")], False),
    ("a call within a thought", f"<think>{CALL}</think>No.", [ThoughtPiece(CALL), TextPiece("No.")], False),
    ("no thought", " No <think> here", [TextPiece(" No <think> here")], False),
    ("no thought but a call", f"\n{CALL}", call("get_time"), False),
    ("an empty thought", "<think>\n\n</think>\n\nYes.", [TextPiece("Yes.")], False),
    ("half a mark", " <thin", [TextPiece(" <thin")], False),
    ("a thought that has no end", "\n<think>Hm.\n</thi", [ThoughtPiece("Hm.\n</thi")], False),
    (
        "a second thought is text",
        "<think>a</think>b<think>c</think>",
        [ThoughtPiece("a"), TextPiece("b<think>c</think>")],
        False,
    ),
    (
        "the prompt opened it",
        f"\nHm <x>\n</think>\nYes.\n{CALL}",
        [ThoughtPiece("Hm <x>"), TextPiece("Yes."), *call("get_time")],
        True,
    ),
    ("the prompt opened it, and it is all", "Hm.\n ", [ThoughtPiece("Hm.\n ")], True),
    ("only whitespace follows", "Hm.</think>\n\n", [ThoughtPiece("Hm.")], True),
]

LISTS = {
    "granite": ("<|tool_call|>", ""),
    "phi4": ("<|tool_call|>", "<|/tool_call|>"),
    "nemotron": ("<TOOLCALL>", "</TOOLCALL>"),
    "hunyuan": ("<tool_calls>", "</tool_calls>"),
}
ACTION, END_ACTION = "<|START_ACTION|>", "<|END_ACTION|>"
PREFIX, SUFFIX = "<|tools_prefix|>", "<|tools_suffix|>"


def listed(opening: str, closing: str) -> list[tuple[str, str, list[Piece]]]:
    """Cases of a family that writes a list of objects between two marks."""
    two = f"{written('weather', PARIS)}, {written('write_file', NASTY)}"
    return [
        ("only text", "It is sunny.\n\nIs it?", [TextPiece("It is sunny.\n\nIs it?")]),
        ("one call", f"{opening}[{written('weather', PARIS)}]{closing}", call("weather", PARIS)),
        (
            "two calls after a text",
            f"I look.\n{opening}[{two}]{closing}\n",
            [TextPiece("I look."), *call("weather", PARIS), *call("write_file", NASTY)],
        ),
        ("spread over lines", f"{opening}\n[\n  {written('get_time')}\n]\n{closing}", call("get_time")),
        ("one object", f"{opening}{written('weather', OSLO)}{closing}", call("weather", OSLO)),
        ("no end", f"{opening}[{written('weather', OSLO)}", call("weather", OSLO)),
        ("no call", f"{opening} it is.", [TextPiece(f"{opening} it is.")]),
        ("an empty list", f"{opening}[]", [TextPiece(f"{opening}[]")]),
        ("half a mark", f"a {opening[:-2]}", [TextPiece(f"a {opening[:-2]}")]),
    ]


def action(*calls: str) -> str:
    return f"{ACTION}[\n" + ",\n".join(f"    {each}" for each in calls) + f"\n]{END_ACTION}"


def numbered(place: int, name: str, arguments: str = "{}") -> str:
    return f'{{"tool_call_id": "{place}", "tool_name": "{name}", "parameters": {arguments}}}'


COMMAND = [
    ("one call", action(numbered(0, "weather", PARIS)), call("weather", PARIS)),
    (
        "two calls after a text",
        f"I look. {action(numbered(0, 'write_file', NASTY), numbered(1, 'get_time'))}",
        [TextPiece("I look."), *call("write_file", NASTY), *call("get_time")],
    ),
    ("no list", f"{ACTION}{numbered(7, 'fly')}{END_ACTION} So.", [*call("fly"), TextPiece("So.")]),
    ("a mark alone", f"{ACTION} no", [TextPiece(f"{ACTION} no")]),
]
APERTUS = [
    ("one call", f'{PREFIX}[{{"weather": {PARIS}}}]{SUFFIX}', call("weather", PARIS)),
    (
        "two calls after a text",
        f'I look.{PREFIX}[{{"write_file": {NASTY}}}, {{ "get_time" : {{}} }}]{SUFFIX}',
        [TextPiece("I look."), *call("write_file", NASTY), *call("get_time")],
    ),
    ("no end", f'{PREFIX}[{{"weather": {OSLO}}}]', call("weather", OSLO)),
    ("without marks", f'[{{"weather": {OSLO}}}]', call("weather", OSLO)),
    ("a list that is text", '[{"fly": {}}]', [TextPiece('[{"fly": {}}]')]),
    ("no object", f'{PREFIX}[{{"weather": 7}}]', [TextPiece(f'{PREFIX}[{{"weather": 7}}]')]),
    ("no name", f"{PREFIX}[{{}}]{SUFFIX}", [TextPiece(f"{PREFIX}[{{}}]{SUFFIX}")]),
]

DEEP = r'{"x": [1, {"y": null}], "z": "é \"q\""}'
FROM_PYTHON = (
    '{"path": "a, b)", "text": "it\'s\\n\\"", "lines": -7, "deep": {"x": [1, {"y": null}], "z": "é \\"q\\""}, '
    '"tags": [true, false], "force": true}'
)
IN_PYTHON = (
    "write_file(path='a, b)', text='it\\'s\\n\"', lines = -7, deep={'x': [1, {\"y\": None}], 'z': 'é \"q\"'},\n"
    "  tags=[True, false], force=true)"
)
PYTHONIC = [
    ("one call", '[weather(city="Paris")]', call("weather", PARIS)),
    ("no arguments", "[get_time()]", call("get_time")),
    ("two calls", "[weather(city='Oslo'), get_time()]\n", [*call("weather", OSLO), *call("get_time")]),
    ("every literal", f"[{IN_PYTHON}]", call("write_file", FROM_PYTHON)),
    (
        "after a mark",
        "Yes. <|python_start|>[fly(up=1.5)]<|python_end|>",
        [TextPiece("Yes."), *call("fly", '{"up": 1.5}')],
    ),
    ("a value that is no literal", "[weather(city=Oslo + 1)]", call("weather", '{"city": "Oslo + 1"}')),
    ("no list end", "[get_time()", call("get_time")),
    ("text after it", "[get_time()] So.", [*call("get_time"), TextPiece("So.")]),
    ("a broken argument", "[weather(city='Oslo', and so on)]", [*call("weather", OSLO), TextPiece("and so on)]")]),
    ("a list that is text", "[1, 2]", [TextPiece("[1, 2]")]),
    ("a link", "[weather](x)", [TextPiece("[weather](x)")]),
    ("an unknown tool without a mark", "[fly(up=1)]", [TextPiece("[fly(up=1)]")]),
    ("an argument without a name", "[weather('Oslo')]", [TextPiece("[weather('Oslo')]")]),
]
FUNCTIONS, END_OF_FUNCTIONS = "<function_calls>", "</function_calls>"
OLMO3 = [
    ("one call", f'{FUNCTIONS}weather(city="Paris"){END_OF_FUNCTIONS}', call("weather", PARIS)),
    (
        "two calls after a text",
        f"I look.\n{FUNCTIONS}{IN_PYTHON}\nget_time(){END_OF_FUNCTIONS}",
        [TextPiece("I look."), *call("write_file", FROM_PYTHON), *call("get_time")],
    ),
    ("no end", f"{FUNCTIONS}\nget_time()\n", call("get_time")),
    ("no call", f"{FUNCTIONS}none{END_OF_FUNCTIONS}", [TextPiece(f"{FUNCTIONS}none{END_OF_FUNCTIONS}")]),
]
LIST, END_OF_LIST = "<|tool_call_start|>[", "]<|tool_call_end|>"
LFM2 = [
    ("one call", f'{LIST}weather(city="Paris"){END_OF_LIST}', call("weather", PARIS)),
    ("an unknown tool", f"{LIST}fly(up=1.5){END_OF_LIST}", call("fly", '{"up": 1.5}')),
    (
        "two calls after a text, and a text after them",
        f"I look.\n{LIST}{IN_PYTHON}, get_time(){END_OF_LIST}So.",
        [TextPiece("I look."), *call("write_file", FROM_PYTHON), *call("get_time"), TextPiece("So.")],
    ),
    ("as an object", f"{LIST}{written('weather', OSLO)}{END_OF_LIST}", call("weather", OSLO)),
    ("no end", f"{LIST}get_time()", call("get_time")),
]


def gemma(opening: str, closing: str, quote: str) -> list[tuple[str, str, list[Piece]]]:
    """Cases of Gemma's notation."""

    def one(name: str, text: str = "") -> str:
        return f"{opening}call:{name}{{{text.replace('@', quote)}}}{closing}"

    deep = 'deep:{@x@:[1,{@y@:null}],@z@:@é "q"@},force:true,lines:-7,tags:[],text:@a, }\n@'
    as_json = f'{{"deep": {DEEP}, "force": true, "lines": -7, "tags": [], "text": "a, }}\\n"}}'
    return [
        ("only text", "It is.\n\nIs it?", [TextPiece("It is.\n\nIs it?")]),
        ("one call", one("weather", "city:@Paris@"), call("weather", PARIS)),
        ("no arguments", one("get_time"), call("get_time")),
        (
            "two calls after a text",
            f"I look.\n{one('weather', 'city:@Oslo@')}{one('get_time')}",
            [TextPiece("I look."), *call("weather", OSLO), *call("get_time")],
        ),
        ("every value", one("write_file", deep), call("write_file", as_json)),
        ("spaces", one("fly", " a : 1 , b : [ 2 , @x@ ] "), call("fly", '{"a": 1, "b": [2, "x"]}')),
        ("a text without marks", one("weather", "city:Oslo"), call("weather", OSLO)),
        ("a comma too many", one("fly", "a:[1,],"), call("fly", '{"a": [1]}')),
        ("text after it", f"{one('get_time')}\n So.", [*call("get_time"), TextPiece("So.")]),
        ("as an object", f"{opening}{written('weather', OSLO)}{closing}", call("weather", OSLO)),
        ("no end", one("get_time").removesuffix(closing), call("get_time")),
        ("a key without a value", one("fly", "a"), [*call("fly"), TextPiece(f"a}}{closing}")]),
        ("no call", f"{opening}called", [TextPiece(f"{opening}called")]),
        ("no name", f"{opening}call:{{}}", [TextPiece(f"{opening}call:{{}}")]),
    ]


ANSWERS = [
    (
        "a thought and an answer",
        "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>",
        [ThoughtPiece("Hm."), TextPiece("Yes.")],
    ),
    ("an answer", "\n<answer>\nYes <b>.\n</answer>\n", [TextPiece("Yes <b>.")]),
    ("no answer mark", " Yes <answer>.", [TextPiece(" Yes <answer>.")]),
    ("no end", "<answer>Yes. </ans", [TextPiece("Yes. </ans")]),
    ("a call within", f"<answer>\n{CALL}\n</answer>", call("get_time")),
    ("half a mark", "\n <ans", [TextPiece("\n <ans")]),
]

CORPUS = [
    *(Case(style, *case) for style in ("hermes", "generic") for case in HERMES),
    *(Case(style, "no call", text, [TextPiece(text)]) for style in ("hermes", "generic") for text in NO_CALLS),
    *(Case("llama3", *case) for case in LLAMA3),
    *(Case("mistral", *case) for case in MISTRAL),
    *(Case("generic", *case) for case in GENERIC),
    *(Case(style, *case) for style, marks in LISTS.items() for case in listed(*marks)),
    *(Case("command", *case) for case in COMMAND),
    *(Case("apertus", *case) for case in APERTUS),
    *(Case("qwen3_coder", *case) for case in in_tags("<tool_call>", "</tool_call>", "\n")),
    *(Case("seed_oss", *case) for case in in_tags("<seed:tool_call>", "</seed:tool_call>", "")),
    *(Case("minimax", *case) for case in MINIMAX),
    *(Case(style, *case) for style in ("glm", "glm47") for case in GLM),
    *(Case("kimi", *case) for case in KIMI),
    *(Case("kimi", *case, thinks=True) for case in KIMI_THOUGHTS),
    *(Case("harmony", *case) for case in HARMONY),
    *(Case("pythonic", *case) for case in PYTHONIC),
    *(Case("olmo3", *case) for case in OLMO3),
    *(Case(style, *case) for style in ("lfm2", "lfm25") for case in LFM2),
    *(Case(style, *case) for style in ("deepseek", "deepseek_v31") for case in DEEPSEEK),
    *(Case("gemma4", *case) for case in gemma("<|tool_call>", "<tool_call|>", '<|"|>')),
    *(Case("function_gemma", *case) for case in gemma("<start_function_call>", "<end_function_call>", "<escape>")),
    *(Case("hermes", *case, thinks=True, answer="<answer>") for case in ANSWERS),
    *(Case("hermes", says, text, pieces, True, begins) for says, text, pieces, begins in THOUGHTS),
    Case(
        "mistral",
        "a bracketed thought",
        "[THINK]Hm.[/THINK]Yes [x].",
        [ThoughtPiece("Hm."), TextPiece("Yes [x].")],
        True,
    ),
    Case("command", "a thought and a call", f"<|START_THINKING|>Hm.<|END_THINKING|>{action(numbered(0, 'fly'))}",
         [ThoughtPiece("Hm."), *call("fly")], True),
    Case("apertus", "a thought", "<|inner_prefix|>Hm.<|inner_suffix|>Yes.",
         [ThoughtPiece("Hm."), TextPiece("Yes.")], True),
    Case("gemma4", "a thought and a call", "<|channel>thought\nHm.\n<channel|><|tool_call>call:fly{}<tool_call|>",
         [ThoughtPiece("Hm."), *call("fly")], True),
    Case("gemma4", "another channel", "<|channel>x\n", [TextPiece("<|channel>x\n")], True),
    Case("seed_oss", "a thought", "<seed:think>\nHm.</seed:think>Yes.", [ThoughtPiece("Hm."), TextPiece("Yes.")], True),
]  # fmt: skip
