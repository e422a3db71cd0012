"""Hunyuan: a JSON list of calls between <tool_calls> and </tool_calls>."""

from __future__ import annotations

from quire.text.parsers.listed import ListedCalls
from quire.text.parsers.style import ToolStyle, unchanged

_CALLS = ListedCalls("<tool_calls>", "</tool_calls>")


def knows(template: str) -> bool:
    return f"{_CALLS.opening}[" in template


STYLE = ToolStyle("hunyuan", _CALLS.marks, knows, _CALLS.parser, _CALLS.rules, unchanged)
