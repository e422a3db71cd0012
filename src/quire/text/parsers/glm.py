"""GLM-4.5 and 4.6: the name, then <arg_key> and <arg_value> for each argument, in <tool_call> marks."""

from __future__ import annotations

from dataclasses import replace

from quire.text.parsers.markup import Markup
from quire.text.parsers.style import ToolStyle, unchanged

_TAGS = Markup(
    opening="<tool_call>", closing="</tool_call>",
    name="", name_end="",
    key="<arg_key>", key_end="</arg_key>",
    value="<arg_value>", value_end="</arg_value>",
    end="", is_padded=False,
)  # fmt: skip
MARKS = (_TAGS.opening, _TAGS.closing, _TAGS.key, _TAGS.key_end, _TAGS.value, _TAGS.value_end)
IN_ONE_LINE = replace(_TAGS, joint="")


def knows_tags(template: str) -> bool:
    """Does this chat template write such calls, in lines or in one line?"""
    return _TAGS.opening in template and _TAGS.key in template


def is_in_one_line(template: str) -> bool:
    """Does nothing stand between a key and its value?"""
    return _TAGS.key_end + _TAGS.value in template


def knows(template: str) -> bool:
    return knows_tags(template) and not is_in_one_line(template)


STYLE = ToolStyle("glm", MARKS, knows, _TAGS.parser, _TAGS.rules, unchanged)
