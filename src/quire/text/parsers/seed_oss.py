"""Seed-OSS: <function=name> with a <parameter=key> for each argument, in <seed:tool_call> marks."""

from __future__ import annotations

from quire.text.parsers.markup import Markup
from quire.text.parsers.style import ToolStyle, unchanged

_TAGS = Markup(
    opening="<seed:tool_call>", closing="</seed:tool_call>",
    name="<function=", name_end=">",
    key="<parameter=", key_end=">",
    value="", value_end="</parameter>",
    end="</function>", is_padded=False,
)  # fmt: skip


def knows(template: str) -> bool:
    return _TAGS.opening in template


STYLE = ToolStyle("seed_oss", (_TAGS.opening, _TAGS.closing), knows, _TAGS.parser, _TAGS.rules, unchanged)
