"""Reads the tools of a request and its tool_choice, in the nested form of chat and in the flat form of responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from quire.serve.dialects.contract import RequestLimits
from quire.serve.dialects.openai.constraints import schema_text
from quire.serve.dialects.openai.fields import Name
from quire.serve.dialects.strict_json import quoted
from quire.text.tool_offer import Mode, ToolOffer, offer_tools
from quire.types.chat import Tool
from quire.types.errors import InvalidRequest


class OpenAIFunction(Struct, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Struct, forbid_unknown_fields=True):
    """A tool of chat completions."""

    type: str
    function: OpenAIFunction | None = None
    custom: Any = None


class FlatTool(Struct, forbid_unknown_fields=True):
    """A tool of responses."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Named(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A function's name, in the nested form."""

    name: str


class ToolRef(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One of the tools of the request, in either form."""

    type: str
    function: Named | None = None
    name: str | None = None


class AllowedTools(Struct, forbid_unknown_fields=True):
    """The tools that may be called in this request."""

    mode: Literal["auto", "required"]
    tools: list[ToolRef]


class ToolChoiceObject(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`tool_choice` as an object, in either form."""

    type: str
    function: Named | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ToolRef] | None = None


def tool_of(given: OpenAIFunction | FlatTool, field: str, limits: RequestLimits) -> Tool:
    """Convert one function. `field` is its path in the body."""
    size = len(schema_text(given.parameters or {}, f"{field}.parameters"))
    if size > limits.max_schema_bytes:
        public = f"{field}.parameters has {size} characters; at most {limits.max_schema_bytes} are allowed."
        raise InvalidRequest(public, field=f"{field}.parameters")
    return Tool(given.name, given.description or "", given.parameters or {}, strict=bool(given.strict))


def chat_tools(given: Sequence[ChatTool], limits: RequestLimits) -> Iterable[Tool]:
    """Convert the tools of a chat completion."""
    for place, tool in enumerate(given):
        field = f"tools[{place}]"
        if tool.type != "function":
            raise unsupported_tool(tool.type, field)
        if tool.function is None:
            raise InvalidRequest(f"Missing required parameter: {field}.function", field=f"{field}.function")
        yield tool_of(tool.function, f"{field}.function", limits)


def unsupported_tool(kind: object, field: str) -> InvalidRequest:
    """The error for tools that run on the server, or whose calls are not JSON."""
    return InvalidRequest(f"{field}.type is {quoted(kind)}; only 'function' is supported.", field=f"{field}.type")


def offer_of(
    tools: Iterable[Tool], choice: str | ToolChoiceObject | None, parallel: bool | None, limits: RequestLimits
) -> ToolOffer:
    """Offer a request's tools as its `tool_choice` says."""
    given = tuple(tools)
    if len(given) > limits.max_tools:
        raise InvalidRequest(f"There are {len(given)} tools; at most {limits.max_tools} are allowed.", field="tools")
    mode, name, allowed = _mode(choice)
    return offer_tools(given, mode, name, allowed, parallel)


class _Mode(NamedTuple):
    mode: Mode
    name: str | None = None
    allowed: tuple[str, ...] | None = None


def _mode(choice: str | ToolChoiceObject | None) -> _Mode:
    match choice:
        case None | "auto":
            return _Mode("auto")
        case "none":
            return _Mode("none")
        case "required" | "any":
            return _Mode("required")
        case ToolChoiceObject(type="function"):
            return _Mode("required", _name(choice, "tool_choice"))
        case ToolChoiceObject(type="allowed_tools", mode=mode, tools=tools, allowed_tools=nested):
            if nested is not None:
                mode, tools = nested.mode, nested.tools
            if mode is not None and tools is not None:
                named = [_name(tool, f"tool_choice.tools[{place}]") for place, tool in enumerate(tools)]
                return _Mode(mode, allowed=tuple(named))
    given = quoted(choice) if isinstance(choice, str) else f"of the type {quoted(choice.type)}"
    public = f"tool_choice is {given}; it must be 'auto', 'none', 'required', or an object of the type 'function' "
    raise InvalidRequest(f"{public}or 'allowed_tools' with its mode and tools.", field="tool_choice")


def _name(given: ToolRef | ToolChoiceObject, field: str) -> str:
    if given.type != "function":
        raise unsupported_tool(given.type, field)
    name = given.function.name if given.function is not None else given.name
    if name is None:
        raise InvalidRequest(f"Missing required parameter: {field}.function.name", field=field)
    return name
