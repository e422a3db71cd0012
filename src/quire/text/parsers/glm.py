"""GLM-4.5 and later: the name, then <arg_key> and <arg_value> for each argument, in <tool_call> marks."""

from __future__ import annotations

from quire.text.parsers.markup import Markup
from quire.text.parsers.style import ToolStyle, unchanged

_TAGS = Markup(
    opening="<tool_call>", closing="</tool_call>",
    name="", name_end="",
    key="<arg_key>", key_end="</arg_key>",
    value="<arg_value>", value_end="</arg_value>",
    end="", is_padded=False,
)  # fmt: skip
_MARKS = (_TAGS.opening, _TAGS.closing, _TAGS.key, _TAGS.key_end, _TAGS.value, _TAGS.value_end)


def knows(template: str) -> bool:
    return _TAGS.opening in template and _TAGS.key in template


STYLE = ToolStyle("glm", _MARKS, knows, _TAGS.parser, _TAGS.rules, unchanged)
