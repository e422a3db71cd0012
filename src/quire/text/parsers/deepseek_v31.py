"""DeepSeek V3.1: the marks of V3, with nothing but the name and the arguments between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.text.parsers import deepseek
from quire.text.parsers.deepseek import CALLS
from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule
from quire.text.parsers.style import TemplateInput, ToolStyle, unchanged
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message


def knows(template: str) -> bool:
    return CALLS.call in template and not deepseek.knows(template)


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    def written(tool: Tool) -> str:
        return f"{literal(tool.name)} {mark_rule(CALLS.separator, tokens)} {arguments(tool)}"

    return f"{CALLS.block_rule(choice, tokens)}\n{call_rules(tools, choice, written)}"


def _describe(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    return CALLS.describe(messages, tools, lambda name, arguments: f"{name}{CALLS.separator}{arguments}")


STYLE = ToolStyle("deepseek_v31", CALLS.marks, knows, CALLS.parser, rules, unchanged, describe=_describe)
