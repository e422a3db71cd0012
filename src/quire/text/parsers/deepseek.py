"""DeepSeek V3 and R1, and the models distilled from it: the name, then the arguments as a block of JSON, in marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule
from quire.text.parsers.separated import FENCE, KIND, SeparatedCalls
from quire.text.parsers.style import TemplateInput, ToolStyle, unchanged
from quire.types.chat import Tool, ToolChoice
from quire.types.message import Message

CALLS = SeparatedCalls(
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
)


def knows(template: str) -> bool:
    return CALLS.call in template and FENCE in template


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    def written(tool: Tool) -> str:
        name = literal(f"{tool.name}\n{FENCE}\n")
        return (
            f"{literal(KIND)} {mark_rule(CALLS.separator, tokens)} {name} {arguments(tool)} {literal(chr(10) + '```')}"
        )

    return f"{CALLS.block_rule(choice, tokens, chr(10))}\n{call_rules(tools, choice, written)}"


def _describe(messages: Sequence[Message], tools: Sequence[Tool]) -> TemplateInput:
    def written(name: str, arguments: str) -> str:
        return f"{KIND}{CALLS.separator}{name}\n{FENCE}\n{arguments}\n```"

    return CALLS.describe(messages, tools, written, joint="\n")


STYLE = ToolStyle("deepseek", CALLS.marks, knows, CALLS.parser, rules, unchanged, describe=_describe)
