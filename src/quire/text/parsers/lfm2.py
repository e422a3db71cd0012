"""LFM2: a list of calls in Python between <|tool_call_start|> and <|tool_call_end|>. Its templates write no calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.lark import call_rules, literal, mark_rule, one_or_more
from quire.text.parsers.pythonic import python_call, python_reader
from quire.text.parsers.style import Parser, TemplateInput, ToolStyle
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message, ToolCall

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"

_FORM = CallForm(opens=(OPEN,), closes=(CLOSE,), bare="[", reader=python_reader)


def knows(template: str) -> bool:
    """Recognized by the words before the list of tools."""
    return "List of tools: " in template and OPEN not in template


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    several = one_or_more(choice, "call", literal(", "))
    calls = f'calls: {mark_rule(OPEN, tokens)} "[" {several} "]" {mark_rule(CLOSE, tokens)}'
    return f"{calls}\n{call_rules(tools, choice, python_call)}"


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """Write calls as text."""
    return TemplateInput(tuple(map(_with_calls, messages)), tuple(tools))


def _with_calls(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = ", ".join(map(_written, message.tool_calls))
    return replace(message, text=f"{message.text}{OPEN}[{calls}]{CLOSE}", tool_calls=())


def _written(call: ToolCall) -> str:
    """name(key="text", …), or an object if the arguments are none."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{call.name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


STYLE = ToolStyle("lfm2", (OPEN, CLOSE), knows, parser, rules, prepare)
