"""Finds the switches for thinking that a chat template reads."""

from __future__ import annotations

from jinja2 import TemplateSyntaxError, meta

from quire.text.go_template.errors import GoSyntaxError
from quire.text.go_template.template import GoTemplate
from quire.text.sandbox import ChatEnvironment

SWITCH = frozenset({"enable_thinking", "thinking", "Think"})
LEVEL = frozenset({"reasoning_effort", "ThinkLevel"})


def thinking_switches(source: str) -> tuple[bool, bool]:
    """Return whether a template (Jinja or Go) has a switch for thinking, and whether it has a level of thinking."""
    names = _names_read(source)
    return bool(SWITCH & names), bool(LEVEL & names)


def _names_read(source: str) -> frozenset[str]:
    is_jinja = "{%" in source
    try:
        if is_jinja:
            return frozenset(meta.find_undeclared_variables(ChatEnvironment().parse(source)))
        return GoTemplate.read(source).field_names
    except (TemplateSyntaxError, GoSyntaxError):  # rendering it says what is wrong
        return frozenset()
