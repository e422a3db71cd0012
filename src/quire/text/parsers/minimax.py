"""MiniMax-M2: <invoke name="…"> with a <parameter name="…"> for each argument, all calls in one pair of marks."""

from __future__ import annotations

from quire.text.parsers.markup import Markup
from quire.text.parsers.style import ToolStyle, unchanged

_TAGS = Markup(
    opening="<minimax:tool_call>", closing="</minimax:tool_call>",
    name='<invoke name="', name_end='">',
    key='<parameter name="', key_end='">',
    value="", value_end="</parameter>",
    end="</invoke>", is_padded=False, has_shared_marks=True,
)  # fmt: skip


def knows(template: str) -> bool:
    return _TAGS.opening in template


STYLE = ToolStyle("minimax", (_TAGS.opening, _TAGS.closing), knows, _TAGS.parser, _TAGS.rules, unchanged)
