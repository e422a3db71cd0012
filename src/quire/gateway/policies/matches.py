"""By a regular expression that is found in the newest message of the user, or where it says."""

from __future__ import annotations

import re
from typing import Literal

from quire.gateway.declared import Node
from quire.gateway.policy import MAX_TEXT, Condition, Facts, Given

EXAMPLE = r"{pattern: '(?i)\bcontract\b', in: text}"
PLACES = ("last", "system", "text")


def read(node: Node, given: Given) -> Condition:
    """A pattern, in Python's words; or a pattern and where to look."""
    parts = node.entries(("pattern", "in")) if node.is_mapping else {"pattern": node}
    if "pattern" not in parts:
        raise node.wrong("a pattern is missing.")
    try:
        pattern = re.compile(parts["pattern"].text())
    except re.error as error:
        raise parts["pattern"].wrong(f"this is no regular expression: {error}.") from None
    place = parts["in"].text() if "in" in parts else "last"
    if place not in PLACES:
        raise parts["in"].wrong(f"it can be looked for in {', '.join(PLACES)}, and not in {place!r}.")
    return lambda facts: pattern.search(_text(facts, place)[:MAX_TEXT]) is not None  # type: ignore[arg-type]


def _text(facts: Facts, place: Literal["last", "system", "text"]) -> str:
    return {"last": facts.last, "system": facts.system, "text": facts.text}[place]
