"""Granite 3: a JSON list of calls after <|tool_call|>. (Granite 4 has Hermes's form.)"""

from __future__ import annotations

from collections.abc import Sequence

from quire.text.parsers.listed import ListedCalls
from quire.text.parsers.style import TemplateInput, ToolStyle
from quire.types.chat import Tool
from quire.types.message import Message

_CALLS = ListedCalls("<|tool_call|>")


def knows(template: str) -> bool:
    return _CALLS.opening in template and "<|start_of_role|>" in template


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """Write calls as text: the templates write nothing but the text of a message."""
    return TemplateInput(tuple(map(_CALLS.write_into_text, messages)), tuple(tools))


STYLE = ToolStyle("granite", _CALLS.marks, knows, _CALLS.parser, _CALLS.rules, prepare)
