"""Discovers every style in this package: a file with a `STYLE`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

import quire.text.parsers
from quire.text.parsers import generic
from quire.text.parsers.style import ToolStyle, writes_tools
from quire.types.errors import InvalidRequest


@cache
def all_styles() -> Mapping[str, ToolStyle]:
    """All styles by name; the generic one, which fits every template, is the last."""
    modules = [
        import_module(f"{quire.text.parsers.__name__}.{m.name}") for m in iter_modules(quire.text.parsers.__path__)
    ]
    found = [module.STYLE for module in modules if hasattr(module, "STYLE")]
    ordered = sorted(found, key=lambda style: (style is generic.STYLE, style.name))
    return MappingProxyType({style.name: style for style in ordered})


def style_of(sources: Iterable[str]) -> ToolStyle:
    """The style of a model with these chat templates."""
    texts = tuple(sources)
    style = next(style for style in all_styles().values() if any(style.knows(text) for text in texts or ("",)))
    if style.describe is None or any(map(writes_tools, texts)):
        return style
    return replace(style, prepare=style.describe)


def by_name(name: str) -> ToolStyle:
    """The style of this name. An error lists all names."""
    try:
        return all_styles()[name]
    except KeyError:
        known = ", ".join(all_styles())
        raise InvalidRequest(f"There is no tool style {name!r}; there are: {known}.", field="tool_style") from None
