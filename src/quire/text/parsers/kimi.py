"""Kimi-K2: functions.name:0, a mark and the arguments, in marks. The number counts the calls of a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule
from quire.text.parsers.separated import SeparatedCalls
from quire.text.parsers.style import TemplateInput, ToolStyle
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message

_CALLS = SeparatedCalls(
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_argument_begin|>", prefix="functions.",
)  # fmt: skip


def knows(template: str) -> bool:
    return _CALLS.opening in template


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    def written(tool: Tool) -> str:
        name = f"{literal(f'{_CALLS.prefix}{tool.name}:')} /[0-9]{{1,3}}/"
        return f"{name} {mark_rule(_CALLS.separator, tokens)} {arguments(tool)}"

    return f"{_CALLS.block_rule(choice, tokens)}\n{call_rules(tools, choice, written)}"


def prepare(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    """Write ids as the model does: the templates write them, and nothing else, before the arguments."""
    return TemplateInput(tuple(_with_own_ids(messages)), tuple(tools))


def _with_own_ids(messages: Sequence[Message]) -> Iterator[Message]:
    ids: dict[str, str] = {}
    count = 0
    for message in messages:
        calls = []
        for call in message.tool_calls:
            ids[call.id] = f"{_CALLS.prefix}{call.name}:{count}"
            calls.append(replace(call, id=ids[call.id]))
            count += 1
        answered = message.tool_call_id
        yield replace(message, tool_calls=tuple(calls), tool_call_id=answered and ids.get(answered, answered))


STYLE = ToolStyle("kimi", _CALLS.marks, knows, _CALLS.parser, rules, prepare, sorts_keys=True)
