"""Nemotron: a JSON list of calls between <TOOLCALL> and </TOOLCALL>."""

from __future__ import annotations

from quire.text.parsers.listed import ListedCalls
from quire.text.parsers.style import ToolStyle, unchanged

_CALLS = ListedCalls("<TOOLCALL>", "</TOOLCALL>")


def knows(template: str) -> bool:
    return _CALLS.opening in template


STYLE = ToolStyle("nemotron", _CALLS.marks, knows, _CALLS.parser, _CALLS.rules, unchanged)
