"""FunctionGemma: Gemma's notation between <start_function_call> and <end_function_call>."""

from __future__ import annotations

from quire.text.parsers.gemma import GemmaNotation
from quire.text.parsers.style import ToolStyle, unchanged

_CALLS = GemmaNotation("<start_function_call>", "<end_function_call>", "<escape>")


def knows(template: str) -> bool:
    return _CALLS.opening in template


STYLE = ToolStyle("function_gemma", _CALLS.marks, knows, _CALLS.parser, _CALLS.rules, unchanged)
