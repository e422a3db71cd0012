"""LFM2.5 with experts: as LFM2, with a template that writes calls itself."""

from __future__ import annotations

from quire.text.parsers.lfm2 import CLOSE, OPEN, parser, rules
from quire.text.parsers.style import ToolStyle, unchanged, writes_tools


def knows(template: str) -> bool:
    return OPEN in template and writes_tools(template)


STYLE = ToolStyle("lfm25", (OPEN, CLOSE), knows, parser, rules, unchanged)
