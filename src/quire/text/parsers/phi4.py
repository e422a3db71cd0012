"""Phi-4-mini: a JSON list of calls between <|tool_call|> and <|/tool_call|>; tools are part of the system message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from quire.text.parsers.listed import ListedCalls
from quire.text.parsers.style import TemplateInput, ToolStyle
from quire.types.chat import Tool
from quire.types.message import Message

_CALLS = ListedCalls("<|tool_call|>", "<|/tool_call|>")
_TOOLS, _END_OF_TOOLS = "<|tool|>", "<|/tool|>"


def knows(template: str) -> bool:
    return _TOOLS in template and _END_OF_TOOLS in template


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """Write tools and calls as text: the template has no variable for tools, and writes no calls."""
    written = [_CALLS.write_into_text(message) for message in messages]
    if tools:
        described = f"{_TOOLS}{json.dumps(list(map(_described, tools)), ensure_ascii=False)}{_END_OF_TOOLS}"
        if not written or written[0].role != "system":
            written.insert(0, Message("system", "You are a helpful assistant with some tools."))
        written[0] = replace(written[0], text=written[0].text + described)
    return TemplateInput(tuple(written), ())


def _described(tool: Tool) -> dict[str, object]:
    properties = tool.parameters.get("properties", {})
    return {"name": tool.name, "description": tool.description, "parameters": properties}


STYLE = ToolStyle("phi4", _CALLS.marks, knows, _CALLS.parser, _CALLS.rules, prepare)
