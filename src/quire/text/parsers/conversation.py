"""Messages and tools as chat templates read them: plain objects, with the names that Hugging Face gave them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from quire.types.chat import Tool
from quire.types.message import Message, ToolCall


def as_template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """For `ChatTemplate.render`. Missing fields are left out, because templates test for them."""
    names: dict[str, str] = {}
    written = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        plain: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.reasoning is not None:
            plain["reasoning_content"] = message.reasoning
        if message.tool_calls:
            plain["tool_calls"] = [_call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            plain["tool_call_id"] = message.tool_call_id
        if name := message.name or names.get(message.tool_call_id or ""):
            plain["name"] = name
        written.append(plain)
    return written


def as_template_tools(tools: Sequence[Tool], sorts_keys: bool = False) -> list[dict[str, Any]] | None:
    """For `ChatTemplate.render`. None if there are none: some templates write about tools for an empty list."""
    written = [_tool(tool) for tool in tools] or None
    return json.loads(json.dumps(written, sort_keys=True)) if sorts_keys else written


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _value(call.arguments)}}


def _value(arguments: str) -> Any:
    """The arguments as a value, because templates write JSON themselves. Text that is not JSON stays as it is."""
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments


def _tool(tool: Tool) -> dict[str, Any]:
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}
