"""The tools of a request and whether the model may, must or must not call them, checked against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

from quire.types.chat import Tool, ToolChoice
from quire.types.errors import InvalidRequest

Mode = Literal["auto", "none", "required"]
MAX_SHOWN = 64  # characters of a wrong name in a message


class ToolOffer(NamedTuple):
    """The tools that may be called, and whether one must be."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()


def offer_tools(
    tools: Iterable[Tool],
    mode: Mode,
    name: str | None = None,
    allowed: Collection[str] | None = None,
    parallel: bool | None = None,
) -> ToolOffer:
    """Offer tools to the model. `name` is the one that it must call; `allowed` are those that it may call this time.

    `parallel`: may there be several calls? None: yes, unless a call is required.
    """
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in by_name:
            raise InvalidRequest(f"Two tools have the name {tool.name!r}.", field="tools")
        by_name[tool.name] = tool
    for each in (*(allowed or ()), *([name] if name is not None else ())):
        if each not in by_name:
            quoted = repr(each) if len(repr(each)) <= MAX_SHOWN else f"{repr(each)[:MAX_SHOWN]}…"
            raise InvalidRequest(f"tool_choice names {quoted}, which is not one of the tools.", field="tool_choice")
    offered = tuple(tool for tool in by_name.values() if allowed is None or tool.name in allowed)
    if mode == "required" and not offered:
        raise InvalidRequest("tool_choice demands a call, and there are no tools.", field="tool_choice")
    is_parallel = parallel is True if mode == "required" else parallel is not False
    return ToolOffer(offered, ToolChoice(mode, name, is_parallel))
