"""OLMo 3: calls in Python between <function_calls> and </function_calls>, one in each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.lark import call_rules, literal, mark_rule, one_or_more
from quire.text.parsers.pythonic import python_call, python_reader
from quire.text.parsers.style import Parser, ToolStyle, unchanged, writes_tools
from quire.types.chat import Tool, ToolChoice

OPEN, CLOSE = "<function_calls>", "</function_calls>"

_FORM = CallForm(opens=(OPEN,), closes=(CLOSE,), reader=python_reader)


def knows(template: str) -> bool:
    return OPEN in template and writes_tools(template)


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    several = one_or_more(choice, "call", literal("\n"))
    calls = f"calls: {mark_rule(OPEN, tokens)} {several} {mark_rule(CLOSE, tokens)}"
    return f"{calls}\n{call_rules(tools, choice, python_call)}"


STYLE = ToolStyle("olmo3", (OPEN, CLOSE), knows, parser, rules, unchanged)
