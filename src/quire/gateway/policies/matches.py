"""By a regular expression, searched in the user's latest message or where `in` says."""

from __future__ import annotations

import re
from typing import Literal

from quire.gateway.policy import MAX_TEXT_CHARS, Condition, Declarations, RequestFacts
from quire.gateway.yaml_nodes import YamlNode

EXAMPLE = r"{pattern: '(?i)\bcontract\b', in: text}"
PLACES = ("last", "system", "text")


def read(node: YamlNode, declared: Declarations) -> Condition:
    """A Python regular expression; or one, and where to search."""
    parts = node.entries(("pattern", "in")) if node.is_mapping else {"pattern": node}
    if "pattern" not in parts:
        raise node.error("a pattern is missing.")
    try:
        pattern = re.compile(parts["pattern"].text())
    except re.error as error:
        raise parts["pattern"].error(f"this is not a regular expression: {error}.") from None
    place = parts["in"].text() if "in" in parts else "last"
    if place not in PLACES:
        raise parts["in"].error(f"`in` is one of {', '.join(PLACES)}, not {place!r}.")
    return lambda facts: pattern.search(_text(facts, place)[:MAX_TEXT_CHARS]) is not None  # type: ignore[arg-type]


def _text(facts: RequestFacts, place: Literal["last", "system", "text"]) -> str:
    return {"last": facts.last, "system": facts.system, "text": facts.text}[place]
