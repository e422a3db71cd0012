"""Reads conversations and tools as Python users give them, in the forms of OpenAI's chat completions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from quire.text.template_variables import take_thinking
from quire.text.tool_offer import Mode, ToolOffer, offer_tools
from quire.types.chat import ChatRequest, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.message import Message, Role, ToolCall
from quire.types.sampling_values import is_unicode, refusal

MessageForm = Mapping[str, Any] | Message
Conversation = str | Sequence[MessageForm]
ToolForm = Mapping[str, Any] | Tool
ToolChoiceForm = str | Mapping[str, Any] | ToolChoice

MESSAGES = "a list of messages such as {'role': 'user', 'content': 'Hi'}"
TOOLS = "a list of tools such as {'type': 'function', 'function': {'name': …}}"
CHOICE = "'auto', 'none', 'required', or {'type': 'function', 'function': {'name': …}}"
TEXT = "text without halves of surrogate pairs"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", *_REASONING)
_ECHOED = ("annotations", "parsed", "function_call", "audio")  # in answers of OpenAI's client, mostly empty
_TEXT_PARTS = ("text", "input_text", "output_text")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
_MODES: dict[Any, Mode] = {None: "auto", "auto": "auto", "none": "none", "required": "required", "any": "required"}


class ChatWords(TypedDict, total=False):
    """Arguments of conversations."""

    tools: Sequence[ToolForm] | None
    tool_choice: ToolChoiceForm | None
    parallel_tool_calls: bool | None
    reasoning_effort: str | None
    chat_template_kwargs: Mapping[str, Any] | None  # variables of the chat template, such as enable_thinking


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What `ChatWords` say, checked."""

    offer: ToolOffer
    think: bool | None
    variables: Mapping[str, Any]
    given: tuple[str, ...]  # names of the arguments that have a value


def take_chat_options(words: dict[str, Any]) -> ChatOptions:
    """Remove the arguments of `ChatWords` from `words` and read them."""
    given = {name: words.pop(name, None) for name in ChatWords.__annotations__}
    effort = given["reasoning_effort"]
    if effort is not None and effort not in EFFORTS:
        raise refusal("reasoning_effort", effort, f"one of {', '.join(EFFORTS)}")
    variables = _variables(given["chat_template_kwargs"])
    think = take_thinking(variables, effort)
    offer = _offer(given["tools"], given["tool_choice"], given["parallel_tool_calls"])
    return ChatOptions(offer, think, variables, tuple(name for name, value in given.items() if value))


def chat_request(messages: Any, options: ChatOptions) -> ChatRequest:
    """Read one conversation. A text is one message of the user."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    items = items_of("messages", messages, MESSAGES)
    if not items:
        raise refusal("messages", messages, MESSAGES)
    return ChatRequest(
        "",
        tuple(_message(item, f"messages[{place}]") for place, item in enumerate(items)),
        tools=options.offer.tools,
        tool_choice=options.offer.choice,
        think=options.think,
        template_variables=options.variables,
    )


def items_of(name: str, given: Any, takes: str) -> list[Any]:
    """The entries of a list, a tuple, an array or an iterator."""
    if hasattr(given, "tolist"):  # an array: its numbers as Python's
        given = given.tolist()
    if isinstance(given, str | bytes | Mapping | Message) or not isinstance(given, Iterable):
        raise refusal(name, given, takes)
    return list(given)


def _message(given: Any, place: str) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise refusal("messages", given, MESSAGES)
    role = given.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(f"{place}.role must be one of {', '.join(_ROLES)}.", field="messages")
    found = {name: value for name, value in given.items() if value is not None and name not in _ECHOED}
    for name in found.keys() - set(_FIELDS):
        raise InvalidRequest(
            f"{place} has {str(name)[:64]!r}; a message may have {', '.join(_FIELDS)}.", field="messages"
        )
    if "content" not in found and role != "assistant":
        raise InvalidRequest(f"{place}.content is missing.", field="messages")
    calls = items_of("messages", found.get("tool_calls", ()), "messages whose tool_calls are a list")
    return Message(
        _ROLES[role],
        _content(found.get("content", "")) or _text(found.get("refusal", "")),
        reasoning=next((_text(found[name]) for name in _REASONING if found.get(name)), None),
        tool_calls=tuple(_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)),
        tool_call_id=_text(found["tool_call_id"]) if "tool_call_id" in found else None,
        name=_text(found["name"]) if "name" in found else None,
    )


def _content(given: Any) -> str:
    """A text, or the texts of all parts, one on each line."""
    return "\n".join(map(_part, given)) if isinstance(given, list | tuple) else _text(given)


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type") in _TEXT_PARTS:
        return _text(part.get("text"))
    if not isinstance(part, str):
        raise refusal("messages", part, "text, or parts of text such as {'type': 'text', 'text': 'Hi'}")
    return _text(part)


def _text(given: Any) -> str:
    if not isinstance(given, str) or not is_unicode(given):
        raise refusal("messages", given, TEXT)
    return given


def _call(given: Any, place: str) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{place} must have a function with a name and arguments.", field="messages")
    arguments = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        arguments = _json_of(arguments, f"{place}.function.arguments", "a JSON object or its text")
    return ToolCall(_text(given.get("id") or ""), _text(function["name"]), _text(arguments))


def _offer(tools: Any, choice: Any, parallel: Any) -> ToolOffer:
    given = () if tools is None else items_of("tools", tools, TOOLS)
    if not isinstance(parallel, bool | None):
        raise refusal("parallel_tool_calls", parallel, "true or false")
    if isinstance(choice, ToolChoice) and parallel is None:
        parallel = choice.parallel
    mode, name = _mode(choice)
    return offer_tools([_tool(tool) for tool in given], mode, name, parallel=parallel)


def _tool(given: Any) -> Tool:
    if isinstance(given, Tool):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or given.get("type", "function") != "function":
        raise refusal("tools", given, TOOLS)
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters") or {}
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise refusal("tools", name, "tools with names of 1 to 128 letters, digits and . _ : -")
    if not isinstance(description, str) or not is_unicode(description) or not isinstance(parameters, Mapping):
        raise refusal("tools", given, TOOLS)
    parameters = json.loads(_json_of(parameters, "tools", "tools whose parameters are a JSON schema"))
    return Tool(name, description, parameters, strict=bool(function.get("strict")))


def _mode(choice: Any) -> tuple[Mode, str | None]:
    if isinstance(choice, ToolChoice):
        return choice.mode, choice.name
    if isinstance(choice, str | None) and choice in _MODES:
        return _MODES[choice], None
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise refusal("tool_choice", choice, CHOICE)
    return "required", name


def _variables(given: Any) -> dict[str, Any]:
    """Variables of the chat template, such as enable_thinking."""
    field, takes = "chat_template_kwargs", "a mapping from names of the template's variables to values"
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise refusal(field, given, takes)
    _json_of(given, field, f"{takes} of JSON")
    return dict(given)


def _json_of(value: Any, field: str, takes: str) -> str:
    try:
        text = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise refusal(field, value, takes) from None
    if not is_unicode(text):
        raise refusal(field, value, TEXT)
    return text
