"""Gemma 4: call:name{key:value,…} between <|tool_call> and <tool_call|>."""

from __future__ import annotations

from quire.text.parsers.gemma import GemmaNotation
from quire.text.parsers.style import ToolStyle, unchanged

_CALLS = GemmaNotation("<|tool_call>", "<tool_call|>", '<|"|>')


def knows(template: str) -> bool:
    return _CALLS.opening in template


STYLE = ToolStyle("gemma4", _CALLS.marks, knows, _CALLS.parser, _CALLS.rules, unchanged)
