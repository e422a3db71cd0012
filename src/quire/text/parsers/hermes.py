"""Hermes, and Qwen after it: each call is a JSON object between <tool_call> and </tool_call>."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.lark import call_rules, literal, mark_rule, object_call, one_or_more
from quire.text.parsers.style import Parser, ToolStyle, unchanged
from quire.types.chat import Tool, ToolChoice

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_FORM = CallForm(opens=(OPEN,), closes=(CLOSE,))


def knows(template: str) -> bool:
    """Other families do not write JSON between the same marks, so the key for arguments must appear too.

    SmolLM3 has the same form, but its template reads tools from a variable of its own and writes no calls.
    """
    has_key = any(f"{quote}arguments{quote}" in template for quote in ('"', '\\"'))
    return OPEN in template and has_key and "<tool_calls>[" not in template and "xml_tools" not in template


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    opening, closing = f"{mark_rule(OPEN, tokens)} {literal(chr(10))}", f"{literal(chr(10))} {mark_rule(CLOSE, tokens)}"
    calls = call_rules(tools, choice, lambda tool: f"{opening} {object_call(tool, 'arguments')} {closing}")
    return f"calls: {one_or_more(choice, 'call', literal(chr(10)))}\n{calls}"


STYLE = ToolStyle("hermes", (OPEN, CLOSE), knows, parser, rules, unchanged)
