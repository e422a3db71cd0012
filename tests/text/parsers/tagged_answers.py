"""Answers of families that write arguments in tags."""

from __future__ import annotations

import json
import re

from quire.text.parsers.style import ArgumentsPiece, CallStart, Piece, TextPiece
from tests.text.parsers.answers import OSLO, PARIS, call, marked, written


def tagged(name: str, pad: str = "\n", **values: str) -> str:
    """A call with a tag for each argument."""
    inner = "".join(f"<parameter={key}>{pad}{value}{pad}</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{inner}</function>"


LINES = 'a "b"\n\n  <b>\\n</para> é 👍\n'
LINES_ARGUMENTS = '{"text": ' + json.dumps(LINES, ensure_ascii=False) + "}"
TYPED = {
    "path": "7",
    "lines": "7",
    "deep": '{"x": [1, {"y": null}]}',
    "mode": "null",
    "tags": "[1, 2]",
    "force": "True",
}
TYPED_ARGUMENTS = (
    '{"path": "7", "lines": 7, "deep": {"x": [1, {"y": null}]}, "mode": null, "tags": [1, 2], "force": true}'
)


def in_tags(opening: str, closing: str, pad: str) -> list[tuple[str, str, list[Piece]]]:
    def block(*calls: str) -> str:
        return "\n".join(f"{opening}\n{each}\n{closing}" for each in calls)

    return [
        ("one call", block(tagged("weather", pad, city="Paris")), call("weather", PARIS)),
        ("no arguments", block(tagged("get_time", pad)), call("get_time")),
        (
            "two calls after a text",
            f"I look.\n\n{block(tagged('weather', pad, city='Oslo'), tagged('get_time', pad))}",
            [TextPiece("I look."), *call("weather", OSLO), *call("get_time")],
        ),
        ("types by the schema", block(tagged("write_file", pad, **TYPED)), call("write_file", TYPED_ARGUMENTS)),
        ("a text of several lines", block(tagged("write_file", pad, text=LINES)), call("write_file", LINES_ARGUMENTS)),
        (
            "marks within a value",
            block(tagged("write_file", pad, text=ENDS_WITHIN)),
            call("write_file", ENDS_ARGUMENTS),
        ),
        ("an empty text", block(tagged("write_file", "", text="")), call("write_file", '{"text": ""}')),
        ("a number that is none", block(tagged("write_file", "", lines="x")), call("write_file", '{"lines": "x"}')),
        (
            "unknown parameters",
            block(tagged("fly", "", a="1", b="up", c='"x"')),
            call("fly", '{"a": 1, "b": "up", "c": "x"}'),
        ),
        ("text after it", f"{block(tagged('get_time', pad))}\n\nDone.", [*call("get_time"), TextPiece("Done.")]),
        ("no last tag", f"{opening}\n<function=get_time>\n{closing}", call("get_time")),
        ("no mark", tagged("get_time", pad), call("get_time")),
        ("as an object", f"{opening}\n{written('weather', OSLO)}\n{closing}", call("weather", OSLO)),
        ("an unknown tool without a mark", tagged("fly", pad), [TextPiece(tagged("fly", pad))]),
        ("HTML", "<b>bold</b>", [TextPiece("<b>bold</b>")]),
        ("no call", f"{opening}<function>", [TextPiece(f"{opening}<function>")]),
        ("no name", f"{opening}<function=>", [TextPiece(f"{opening}<function=>")]),
    ]


ENDS_WITHIN = "a</function>\n</invoke></tool_call></minimax:tool_call>b"
ENDS_ARGUMENTS = f'{{"text": {json.dumps(ENDS_WITHIN)}}}'


def invoked(text: str) -> str:
    """The same call in MiniMax's tags."""
    for pattern, tag in (("function=", "invoke name="), ("parameter=", "parameter name=")):
        text = re.sub(rf"<{pattern}(\w*)>", rf'<{tag}"\1">', text)
    return text.replace("\n</function>", "\n</invoke>")


MINIMAX_MARKS = ("<minimax:tool_call>", "</minimax:tool_call>")
TWO_INVOKED = invoked(f"{tagged('weather', '', city='Oslo')}\n{tagged('get_time')}")
MINIMAX = [
    *(
        (says, invoked(text), [TextPiece(invoked(p.text)) if isinstance(p, TextPiece) else p for p in pieces])
        for says, text, pieces in in_tags(*MINIMAX_MARKS, "")
    ),
    (
        "two calls in one pair of marks",
        f"Yes.\n{MINIMAX_MARKS[0]}\n{TWO_INVOKED}\n{MINIMAX_MARKS[1]}",
        [TextPiece("Yes."), *call("weather", OSLO), *call("get_time")],
    ),
    ("no end of the marks", f"{MINIMAX_MARKS[0]}\n{TWO_INVOKED}", [*call("weather", OSLO), *call("get_time")]),
]


def glm(name: str, **values: str) -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
    return f"<tool_call>{name}\n{inner}</tool_call>"


GLM = [
    ("one call", glm("weather", city="Paris"), call("weather", PARIS)),
    ("no arguments", glm("get_time"), call("get_time")),
    ("in one line", glm("weather", city="Oslo").replace("\n", ""), call("weather", OSLO)),
    (
        "two calls after a text",
        f"I look.\n{glm('weather', city='Oslo')}\n{glm('get_time')}",
        [TextPiece("I look."), *call("weather", OSLO), *call("get_time")],
    ),
    ("types by the schema", glm("write_file", **TYPED), call("write_file", TYPED_ARGUMENTS)),
    ("a text of several lines", glm("write_file", text=LINES), call("write_file", LINES_ARGUMENTS)),
    ("marks within a value", glm("write_file", text=ENDS_WITHIN), call("write_file", ENDS_ARGUMENTS)),
    ("no end", "<tool_call>get_time", [TextPiece("<tool_call>get_time")]),
    (
        "no end of a value",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo",
        [CallStart("weather"), ArgumentsPiece('{"city": ')],
    ),
    ("text after it", f"{glm('get_time')}\n\nDone.", [*call("get_time"), TextPiece("Done.")]),
    ("as an object", marked(written("weather", OSLO)), call("weather", OSLO)),
    ("a mark in a text", "<tool_call> is the mark.", [TextPiece("<tool_call> is the mark.")]),
    ("a call in code", "<tool_call>get_time()</tool_call>", [TextPiece("<tool_call>get_time()</tool_call>")]),
    (
        "no value",
        "<tool_call>weather<arg_key>city</arg_key> Oslo",
        [*call("weather"), TextPiece("Oslo")],
    ),
]
