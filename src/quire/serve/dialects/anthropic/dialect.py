"""Anthropic's API: /v1/messages, /v1/messages/count_tokens, and /v1/models for clients that send `anthropic-version`.

`cache_control` pins: the prompt up to the marked message is kept for its five minutes or its hour, and the usage says
how much of it was read (cache_read_input_tokens) and how much was computed to be kept (cache_creation_input_tokens).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from quire.serve.dialects.anthropic.body import (
    AnyChoice,
    AutoChoice,
    CountBody,
    CustomTool,
    MessagesBody,
    NamedChoice,
    NoChoice,
    ThinkingDisabled,
    ThinkingEnabled,
)
from quire.serve.dialects.anthropic.conversation import read_conversation
from quire.serve.dialects.anthropic.models import encode_model, encode_page
from quire.serve.dialects.anthropic.writer import MessageWriter, error_body
from quire.serve.dialects.body import DOTS, Schemas, convert_value
from quire.serve.dialects.contract import (
    CountEndpoint,
    Decoded,
    Dialect,
    GenerateEndpoint,
    PageEndpoint,
    RequestLimits,
    ShowEndpoint,
)
from quire.serve.dialects.request_limits import check_stops, check_tools, limited_schema_text
from quire.serve.dialects.strict_json import parse_json
from quire.types.chat import ChatRequest, Terms, Tool, ToolChoice
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind, SamplingParams

VERSION_HEADER = "anthropic-version"  # sent by every client of Anthropic's
_LIKELIEST_ONLY = 1e-6  # a top_p of 0: the smallest share that still has a token in it


def decode(body: bytes, limits: RequestLimits) -> Decoded:
    """Decode a request for a message."""
    request = convert_value(_parsed(body), MessagesBody, "", DOTS)
    thinking = request.thinking
    if isinstance(thinking, ThinkingEnabled) and thinking.budget_tokens >= request.max_tokens:
        field = "thinking.budget_tokens"
        raise InvalidRequest(f"{field}: Must be less than max_tokens", field=field)
    shows = thinking is None or isinstance(thinking, ThinkingDisabled) or thinking.display != "omitted"
    chosen: dict[str, Any] = {} if request.speculate is None else {"speculate": request.speculate}
    sampling = SamplingParams(
        max_tokens=request.max_tokens,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=request.top_k or 0,
        top_p=1.0 if request.top_p is None else request.top_p or _LIKELIEST_ONLY,
        stop=check_stops(request.stop_sequences or (), limits, "stop_sequences"),
        **chosen,
    )
    said = {
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "stop": request.stop_sequences,
        **chosen,
    }
    ask = replace(
        _request(request, limits, sampling, bool(request.stream)),
        sampling_fields=frozenset({"max_tokens", *(name for name, value in said.items() if value is not None)}),
    )
    return Decoded(ask, partial(MessageWriter, shows_thinking=shows))


def decode_count(body: bytes, limits: RequestLimits) -> ChatRequest:
    """Decode a prompt whose tokens are counted."""
    return _request(convert_value(_parsed(body), CountBody, "", DOTS), limits, SamplingParams(), stream=False)


def encode_count(num_tokens: int) -> bytes:
    """Encode the number of tokens."""
    return msgspec.json.encode({"input_tokens": num_tokens})


def _parsed(body: bytes) -> Any:
    """Parse the body. Refuses Anthropic's own tools."""
    value = parse_json(body)
    given = value.get("tools") if isinstance(value, dict) else None
    for place, tool in enumerate(given if isinstance(given, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            field = f"tools.{place}.type"
            what = f"{kind[:64]!r} is a tool of Anthropic's own: this server takes custom tools, with an input_schema"
            raise InvalidRequest(f"{field}: {what}", field=field)
    return value


def _request(request: CountBody, limits: RequestLimits, sampling: SamplingParams, stream: bool) -> ChatRequest:
    messages, keep = read_conversation(request)
    effort = request.output_config and request.output_config.effort
    return ChatRequest(
        model=request.model or "",
        messages=messages,
        sampling=sampling,
        tools=_tools(request.tools or [], limits),
        tool_choice=_tool_choice(request),
        constraint=_constraint(request, limits),
        stream=stream,
        think=None if request.thinking is None else not isinstance(request.thinking, ThinkingDisabled),
        continue_last=messages[-1].role == "assistant",
        template_variables={"reasoning_effort": effort} if effort else {},
        terms=Terms(keep=keep, user=_user(request)),
    )


def _user(request: CountBody) -> str:
    return (request.metadata.user_id or "") if isinstance(request, MessagesBody) and request.metadata else ""


def _tools(given: list[CustomTool], limits: RequestLimits) -> tuple[Tool, ...]:
    check_tools([tool.name for tool in given], limits, "tools")
    return tuple(_tool(tool, limits, f"tools.{place}") for place, tool in enumerate(given))


def _tool(tool: CustomTool, limits: RequestLimits, at: str) -> Tool:
    if tool.defer_loading:
        raise InvalidRequest(f"{at}.defer_loading: Tools are always loaded here", field=f"{at}.defer_loading")
    examples = {"examples": tool.input_examples} if tool.input_examples else {}
    parameters = {**tool.input_schema, **examples}
    limited_schema_text(parameters, limits, f"{at}.input_schema")
    return Tool(tool.name, tool.description or "", parameters, bool(tool.strict))


def _tool_choice(request: CountBody) -> ToolChoice:
    choice = request.tool_choice
    if choice is None:
        return ToolChoice()
    if isinstance(choice, NoChoice):
        return ToolChoice("none")
    single = choice.disable_parallel_tool_use
    parallel = not single if isinstance(choice, AutoChoice) else single is False
    names = {tool.name for tool in request.tools or ()}
    if isinstance(choice, NamedChoice):
        if choice.name not in names:
            raise InvalidRequest("tool_choice.name: There is no such tool in tools", field="tool_choice.name")
        return ToolChoice("required", choice.name, parallel)
    if isinstance(choice, AnyChoice):
        if not names:
            raise InvalidRequest("tool_choice: There are no tools to choose from", field="tool_choice")
        return ToolChoice("required", parallel=parallel)
    return ToolChoice(parallel=parallel)


def _constraint(request: CountBody, limits: RequestLimits) -> Constraint | None:
    """The schema of the answer: in output_config, or in output_format, as beta clients send it."""
    if request.output_config and request.output_config.format:
        field, form = "output_config.format.schema", request.output_config.format
    elif request.output_format:
        field, form = "output_format.schema", request.output_format
    else:
        return None
    return Constraint(ConstraintKind.SCHEMA, limited_schema_text(form.schema, limits, field))


DIALECT = Dialect(
    name="anthropic",
    endpoints=(
        GenerateEndpoint("/v1/messages", decode),
        CountEndpoint("/v1/messages/count_tokens", decode_count, encode_count),
        PageEndpoint("/v1/models", encode_page, VERSION_HEADER),
        ShowEndpoint("/v1/models/{name}", encode_model, header=VERSION_HEADER),
    ),
    error=error_body,
    headers={},
    schemas=Schemas({"/v1/messages": (MessagesBody, None), "/v1/messages/count_tokens": (CountBody, None)}),
)
