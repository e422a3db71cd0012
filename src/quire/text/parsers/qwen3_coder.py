"""Qwen3-Coder, Qwen3.5, Nemotron 3: <function=name> with a <parameter=key> for each argument, in <tool_call> marks."""

from __future__ import annotations

from quire.text.parsers.markup import Markup
from quire.text.parsers.style import ToolStyle, unchanged

_TAGS = Markup(
    opening="<tool_call>", closing="</tool_call>",
    name="<function=", name_end=">",
    key="<parameter=", key_end=">",
    value="", value_end="</parameter>",
    end="</function>", is_padded=True,
)  # fmt: skip


def knows(template: str) -> bool:
    return _TAGS.opening in template and _TAGS.name in template and _TAGS.key in template


STYLE = ToolStyle("qwen3_coder", (_TAGS.opening, _TAGS.closing), knows, _TAGS.parser, _TAGS.rules, unchanged)
