"""Answers of families with a mark between name and arguments, and of gpt-oss, which writes messages."""

from __future__ import annotations

from quire.text.parsers.style import TextPiece, ThoughtPiece
from tests.text.parsers.answers import NASTY, OSLO, PARIS, SPREAD, call

SEP = "<｜tool▁sep｜>"


def deepseek(*calls: str, joint: str = "\n") -> str:
    inner = joint.join(f"<｜tool▁call▁begin｜>{each}<｜tool▁call▁end｜>" for each in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def in_fence(name: str, arguments: str = "{}") -> str:
    return f"function{SEP}{name}\n```json\n{arguments}\n```"


IN_MARKS = '{"text": "<｜tool▁call▁end｜><|tool_call_end|><|end|><|call|>"}'
DEEPSEEK = [
    ("one call", deepseek(in_fence("weather", PARIS)), call("weather", PARIS)),
    (
        "two calls after a text",
        f"I look.\n{deepseek(in_fence('write_file', NASTY), in_fence('get_time'))}",
        [TextPiece("I look."), *call("write_file", NASTY), *call("get_time")],
    ),
    (
        "without a fence",
        deepseek(f"weather{SEP}{OSLO}", f"get_time{SEP}{{}}", joint=""),
        [*call("weather", OSLO), *call("get_time")],
    ),
    ("marks within a string", deepseek(in_fence("write_file", IN_MARKS)), call("write_file", IN_MARKS)),
    ("nothing for arguments", deepseek(f"get_time{SEP}"), call("get_time")),
    ("text after it", f"{deepseek(in_fence('fly'))}\nSo.", [*call("fly"), TextPiece("So.")]),
    ("no end", f"<｜tool▁call▁begin｜>{in_fence('fly')}", call("fly")),
    ("no separator", "<｜tool▁call▁begin｜>function weather", [TextPiece("<｜tool▁call▁begin｜>function weather")]),
    ("no arguments", deepseek(f"function{SEP}fly"), [TextPiece(deepseek(f"function{SEP}fly"))]),
]


def section(*calls: str) -> str:
    inner = "".join(f"<|tool_call_begin|>{each}<|tool_call_end|>" for each in calls)
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def kimi(name: str, arguments: str = "{}") -> str:
    return f"{name}<|tool_call_argument_begin|>{arguments}"


KIMI = [
    ("only text", "It is.\n\nIs it?", [TextPiece("It is.\n\nIs it?")]),
    ("one call", section(kimi("functions.weather:0", PARIS)), call("weather", PARIS)),
    (
        "two calls after a text",
        f"I look.{section(kimi('functions.write_file:0', NASTY), kimi('functions.get_time:1'))}",
        [TextPiece("I look."), *call("write_file", NASTY), *call("get_time")],
    ),
    ("marks within a string", section(kimi("functions.write_file:12", IN_MARKS)), call("write_file", IN_MARKS)),
    ("spaces", section(" functions.weather:0 <|tool_call_argument_begin|> {} "), call("weather")),
    ("no prefix", section(kimi("weather:0", OSLO)), call("weather", OSLO)),
    ("no number", section(kimi("functions.weather", OSLO)), call("weather", OSLO)),
    ("a name with a dot", section(kimi("functions.a.b:3")), call("a.b")),
    ("nothing for arguments", section(kimi("functions.get_time:0", "")), call("get_time")),
    (
        "no section",
        f"<|tool_call_begin|>{kimi('functions.fly:0')}<|tool_call_end|> So.",
        [*call("fly"), TextPiece("So.")],
    ),
    ("no end", section(kimi("functions.fly:0")).partition("<|tool_call_end|>")[0], call("fly")),
    ("a list for arguments", section(kimi("fly:0", "[1]")), [TextPiece(section(kimi("fly:0", "[1]")))]),
    ("no separator", section("functions.fly:0 {}"), [TextPiece(section("functions.fly:0 {}"))]),
    ("an empty section", section(), [TextPiece(section())]),
]
KIMI_THOUGHTS = [
    ("a thought and a call", f"<think>Hm.</think>{section(kimi('fly:0'))}", [ThoughtPiece("Hm."), *call("fly")]),
    ("a thought that ends with a call", f"<think>Hm. {section(kimi('fly:0'))}", [ThoughtPiece("Hm."), *call("fly")]),
]


def said(channel: str, text: str, end: str = "<|end|>", to: str = "") -> str:
    """One of gpt-oss's messages, without what begins it."""
    return f"<|channel|>{channel}{to}<|message|>{text}{end}"


def called(name: str, arguments: str = "{}", end: str = "<|call|>") -> str:
    return said("commentary", arguments, end, f" to=functions.{name} <|constrain|>json")


NEXT, HM = "<|start|>assistant", said("analysis", "Hm.") + "<|start|>assistant"
HARMONY = [
    ("a final text", said("final", "It is.\n\nIs it?", ""), [TextPiece("It is.\n\nIs it?")]),
    ("a thought and a text", HM + said("final", "Yes.", "<|return|>"), [ThoughtPiece("Hm."), TextPiece("Yes.")]),
    ("a thought and a call", HM + called("weather", PARIS), [ThoughtPiece("Hm."), *call("weather", PARIS)]),
    ("a call that ends the answer", called("weather", PARIS, ""), call("weather", PARIS)),
    ("braces, escapes, letters of all kinds", called("write_file", NASTY), call("write_file", NASTY)),
    ("marks within a string", called("write_file", IN_MARKS), call("write_file", IN_MARKS)),
    (
        "two calls",
        called("weather", PARIS) + NEXT + called("get_time", "{}", ""),
        [*call("weather", PARIS), *call("get_time")],
    ),
    (
        "two calls that do not end the answer",
        called("weather", PARIS, "<|end|>") + NEXT + called("get_time"),
        [*call("weather", PARIS), *call("get_time")],
    ),
    (
        "the function after the role",
        f" to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{PARIS}<|call|>",
        call("weather", PARIS),
    ),
    (
        "as the template writes it",
        f"{NEXT} to=functions.weather<|channel|>commentary json<|message|>{PARIS}<|call|>",
        call("weather", PARIS),
    ),
    ("no type", said("commentary", PARIS, "<|call|>", " to=functions.weather"), call("weather", PARIS)),
    (
        "the type without a space",
        said("commentary", PARIS, "<|call|>", " to=functions.weather<|constrain|>json"),
        call("weather", PARIS),
    ),
    ("no to=", said("commentary", PARIS, "<|call|>", " functions.weather"), call("weather", PARIS)),
    ("a call on another channel", said("analysis", OSLO, "<|call|>", " to=functions.weather"), call("weather", OSLO)),
    ("a tool that is not there", called("fly"), call("fly")),
    ("another name for the functions", said("commentary", "{}", "", " to=get_time"), call("get_time")),
    ("nothing for arguments", called("get_time", ""), call("get_time")),
    ("nothing for arguments at the end", called("get_time", " ", ""), call("get_time")),
    ("arguments that are no object", called("fly", "up <b>"), call("fly", "up <b>")),
    ("arguments that were cut off", called("weather", OSLO[:-4], ""), call("weather", OSLO[:-4])),
    ("spread over lines", called("weather", f"\n{SPREAD}\n"), call("weather", SPREAD)),
    (
        "a preamble, a call and a text",
        f"{HM}{said('commentary', 'I look.')}{NEXT}{called('get_time')}{NEXT}{said('final', 'Done.')}",
        [ThoughtPiece("Hm."), TextPiece("I look."), *call("get_time"), TextPiece("\n\nDone.")],
    ),
    (
        "several thoughts",
        f"{HM}{said('analysis', ' So. ')}\n{NEXT}{said('final', 'Yes.', '')}",
        [ThoughtPiece("Hm.\n\nSo."), TextPiece("Yes.")],
    ),
    ("an empty thought", said("analysis", "") + NEXT + said("final", "Yes."), [TextPiece("Yes.")]),
    (
        "a tool that the model was trained with",
        said("analysis", "print(1)", "<|call|>", " to=python code"),
        [ThoughtPiece("print(1)")],
    ),
    (
        "a result that the model made up",
        f"{called('get_time')}<|start|>functions.get_time to=assistant<|channel|>commentary<|message|>12<|end|>",
        [*call("get_time"), ThoughtPiece("12")],
    ),
    ("a question that the model made up", "<|start|>user<|message|>And?<|end|>", [ThoughtPiece("And?")]),
    (
        "no end before the next message",
        f"{said('analysis', 'Hm.', '')}{NEXT}{said('final', 'Yes.', '')}",
        [ThoughtPiece("Hm."), TextPiece("Yes.")],
    ),
    (
        "no start of the next message",
        f"{said('analysis', 'Hm.', '')}{said('final', 'Yes.', '<|end|>')}assistant{said('final', 'No.')}",
        [ThoughtPiece("Hm."), TextPiece("Yes.\n\nNo.")],
    ),
    ("no channel", "<|message|>Yes.<|end|>", [TextPiece("Yes.")]),
    ("another channel", said("comment", "Yes."), [TextPiece("Yes.")]),
    ("a type of text", said("final", '{"a": 1}', "", " <|constrain|>json"), [TextPiece('{"a": 1}')]),
    ("no header", " Yes, to=you <b> <|", [TextPiece(" Yes, to=you <b> <|")]),
    ("text after a call", f"{called('get_time', '{}', '')} So.<|end|>", [*call("get_time"), TextPiece("So.")]),
    (
        "a header that has no end",
        f"{HM}<|channel|>final Yes",
        [ThoughtPiece("Hm."), TextPiece(f"{NEXT}<|channel|>final Yes")],
    ),
    ("a header that ends at once", f"{NEXT}<|end|>{NEXT}{said('final', 'Yes.')}", [TextPiece("Yes.")]),
    ("only whitespace", " \n", [TextPiece(" \n")]),
]
