"""Turns of a conversation, rearranged for templates that refuse or leave out some."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from quire.types.chat import Tool
from quire.types.message import Message


def one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """Put each call into its own turn, followed by its result."""
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        if len(message.tool_calls) < 2:
            yield message
            continue
        end = next((i for i in range(place, len(messages)) if messages[i].role != "tool"), len(messages))
        results = list(messages[place:end])
        place = end
        for call in message.tool_calls:
            yield replace(message, tool_calls=(call,))
            yield from (result for result in results if result.tool_call_id == call.id)
            results = [result for result in results if result.tool_call_id != call.id]
            message = replace(message, text="", reasoning=None)
        yield from results


def with_instructions(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Add a text to the system message."""
    if not messages or messages[0].role != "system":
        return Message("system", text), *messages
    joined = "\n\n".join(part for part in (messages[0].text, text) if part)
    return replace(messages[0], text=joined), *messages[1:]


def described(tools: Sequence[Tool]) -> str:
    """Tools as JSON, each in a line."""
    return "\n".join(map(_described, tools))


def _described(tool: Tool) -> str:
    facts = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return json.dumps({key: value for key, value in facts.items() if value}, ensure_ascii=False)


def one_system_message(messages: Sequence[Message]) -> list[Message]:
    """Join all system messages in the first."""
    system = [message for message in messages if message.role == "system"]
    if not system or (len(system) == 1 and messages[0] is system[0]):
        return list(messages)
    keep = max((message.keep for message in system if message.keep is not None), default=None)
    first = replace(system[0], text="\n\n".join(message.text for message in system if message.text), keep=keep)
    return [first, *(message for message in messages if message.role != "system")]
