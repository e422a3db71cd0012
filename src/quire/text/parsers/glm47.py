"""GLM-4.7: the tags of GLM-4.5, with nothing between them."""

from __future__ import annotations

from quire.text.parsers import glm
from quire.text.parsers.style import ToolStyle, unchanged


def knows(template: str) -> bool:
    return glm.knows_tags(template) and glm.is_in_one_line(template)


STYLE = ToolStyle("glm47", glm.MARKS, knows, glm.IN_ONE_LINE.parser, glm.IN_ONE_LINE.rules, unchanged)
