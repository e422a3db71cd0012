"""Calls as a JSON list of objects after a mark: the form of several families, which differ in the mark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.lark import call_rules, literal, mark_rule, object_call, one_or_more
from quire.text.parsers.style import Parser
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message


@dataclass(frozen=True)
class ListedCalls:
    """The marks around a list of {"name": …, "arguments": {…}}."""

    opening: str
    closing: str = ""  # empty: the list ends the answer

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that there are."""
        return (self.opening, self.closing) if self.closing else (self.opening,)

    @cached_property
    def _form(self) -> CallForm:
        return CallForm(opens=(self.opening,), closes=self.marks[1:])

    def parser(self, tools: Sequence[Tool]) -> Parser:
        """Make the parser of an answer with such calls."""
        return CallParser(self._form, tools)

    def rules(self, tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
        """The grammar of an answer that must be such calls."""
        calls = call_rules(tools, choice, lambda tool: object_call(tool, "arguments"))
        closing = mark_rule(self.closing, tokens) if self.closing else ""
        several = one_or_more(choice, "call", literal(", "))
        return f'calls: {mark_rule(self.opening, tokens)} "[" {several} "]" {closing}\n{calls}'

    def write_into_text(self, message: Message) -> Message:
        """The message with its calls as text, for templates that do not write them."""
        if not message.tool_calls:
            return message
        calls = ", ".join(
            f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments.strip() or "{}"}}}'
            for call in message.tool_calls
        )
        return replace(message, text=f"{message.text}{self.opening}[{calls}]{self.closing}", tool_calls=())
