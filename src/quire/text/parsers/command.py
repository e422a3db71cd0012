"""Command R7B and A: between <|START_ACTION|> and <|END_ACTION|> a JSON list of objects with the keys "tool_call_id",
"tool_name" and "parameters".

The marks around a plain answer are special tokens, which are never printed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from quire.text.parsers.calls import CallForm, CallParser
from quire.text.parsers.lark import arguments, call_rules, literal, mark_rule, one_or_more
from quire.text.parsers.style import Parser, ToolStyle, unchanged
from quire.types.chat import Tool, ToolChoice

OPEN, CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"

_FORM = CallForm(opens=(OPEN,), closes=(CLOSE,))


def knows(template: str) -> bool:
    return OPEN in template


def parser(tools: Sequence[Tool]) -> Parser:
    return CallParser(_FORM, tools)


def _written(tool: Tool) -> str:
    before, after = (
        literal('    {"tool_call_id": "'),
        literal(f'", "tool_name": {json.dumps(tool.name, ensure_ascii=False)}, "parameters": '),
    )
    return f"{before} /[0-9]{{1,3}}/ {after} {arguments(tool)} {literal('}')}"


def rules(tools: Sequence[Tool], choice: ToolChoice, tokens: Mapping[str, int]) -> str:
    several = one_or_more(choice, "call", literal(",\n"))
    whole = f"{mark_rule(OPEN, tokens)} {literal('[' + chr(10))} {several} {literal(chr(10) + ']')}"
    return f"calls: {whole} {mark_rule(CLOSE, tokens)}\n{call_rules(tools, choice, _written)}"


STYLE = ToolStyle("command", (OPEN, CLOSE), knows, parser, rules, unchanged)
