"""Llama 3 and 4: a call is a JSON object, sometimes after <|python_tag|>; several are separated by semicolons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.lark import call_rules, literal, object_call, one_or_more
from quire.text.parsers.style import Parser, TemplateInput, ToolStyle
from quire.text.parsers.turns import one_call_each
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message

TAG = "<|python_tag|>"

_FORM = CallForm(opens=(TAG,))


def knows(template: str) -> bool:
    """Recognized by the header of turns, and by the key "parameters" where other families have "arguments"."""
    has_header = "<|start_header_id|>" in template or "<|header_start|>" in template
    return has_header and any(f"{quote}parameters{quote}" in template for quote in ('"', '\\"'))


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    calls = call_rules(tools, choice, lambda tool: object_call(tool, "parameters"))
    return f"calls: {one_or_more(choice, 'call', literal('; '))}\n{calls}"


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """Put each call into its own turn, followed by its result: the templates refuse turns with several calls."""
    return TemplateInput(tuple(one_call_each(messages)), tuple(tools))


STYLE = ToolStyle("llama3", (TAG,), knows, parser, rules, prepare)
