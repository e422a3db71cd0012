"""OpenAI's responses API, stateless: nothing is stored, so every request has its whole conversation."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from msgspec import Struct

from quire.serve.dialects.body import Refusal, Schemas, convert_value, read_body
from quire.serve.dialects.contract import CountEndpoint, Decoded, Dialect, GenerateEndpoint, RequestLimits
from quire.serve.dialects.openai.constraints import read_constraint
from quire.serve.dialects.openai.fields import REFUSED, Count, CountOrZero, OpenAIFields, ReasoningField, ResponseFormat
from quire.serve.dialects.openai.replies import encode, error_body
from quire.serve.dialects.openai.sampling import given_parameters, num_logprobs, read_sampling
from quire.serve.dialects.openai.terms import read_terms
from quire.serve.dialects.openai.tools import FlatTool, ToolChoiceObject, offer_of, tool_of, unsupported_tool
from quire.serve.dialects.responses.conversation import read_conversation
from quire.serve.dialects.responses.response_object import ResponseForm
from quire.serve.dialects.responses.writer import ResponseWriter
from quire.serve.dialects.strict_json import quoted
from quire.text.template_variables import effort_thinks
from quire.types.chat import ChatRequest, Tool
from quire.types.errors import InvalidRequest

RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"

_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (_LOGPROBS, "reasoning.encrypted_content")  # thoughts are sent in the clear, so the latter adds nothing


class TextFormat(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The format of the text; a schema has no wrapper here."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesText(Struct, forbid_unknown_fields=True):
    """Options of the text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesStreamOptions(Struct, forbid_unknown_fields=True):
    """Options of a stream. Events are never padded."""

    include_obfuscation: bool | None = None


class ResponseBody(OpenAIFields, kw_only=True):
    """POST /v1/responses"""

    model: str | None = None  # None: the only one that is served
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None  # of tools that a server runs itself: there are none
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningField | None = None
    text: ResponsesText | None = None
    top_logprobs: CountOrZero | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None


_STATELESS = "nothing is stored here; send the whole conversation as input."
RESPONSES_REFUSED = REFUSED | {
    "previous_response_id": Refusal(_STATELESS),
    "conversation": Refusal(_STATELESS),
    "prompt": Refusal("nothing is stored here; send instructions and input."),
    "background": Refusal("an answer is sent as it is made; see stream.", (False,)),
    "truncation": Refusal("a prompt is never cut silently.", ("disabled",)),
    "context_management": Refusal("a conversation is taken as it is sent."),
    "access_programs": Refusal("there are none."),
    "image": Refusal("only text is taken."),
    "n": Refusal("a response is one answer.", (1,)),
    "prompt_logprobs": Refusal("see /v1/chat/completions."),
    "return_token_ids": Refusal("see /v1/chat/completions.", (False,)),
}


def decode(body: bytes, limits: RequestLimits) -> Decoded:
    """Decode a response."""
    given = read_body(body, ResponseBody, RESPONSES_REFUSED)
    top = num_logprobs(given.top_logprobs, limits, "top_logprobs")
    wants_logprobs = top is not None or _LOGPROBS in _included(given)
    if given.stream_options is not None and given.stream_options.include_obfuscation:
        field = "stream_options.include_obfuscation"
        raise InvalidRequest(f"{field} is not supported: events are not padded.", field=field)
    offer = offer_of(_tools(given, limits), given.tool_choice, given.parallel_tool_calls, limits)
    effort = given.reasoning.effort if given.reasoning else None
    strict = bool(given.text and given.text.format and given.text.format.strict)
    logprobs = top or 0 if wants_logprobs else None
    ask = ChatRequest(
        given.model or "",
        read_conversation(given.input, given.instructions),
        read_sampling(given, limits, max_tokens=given.max_output_tokens, logprobs=logprobs),
        given_parameters(given),
        tools=offer.tools,
        tool_choice=offer.choice,
        constraint=read_constraint(given, limits, _format(given.text), "text.format", strict),
        stream=bool(given.stream),
        think=effort_thinks(effort),
        template_variables={} if effort is None else {"reasoning_effort": effort},
        terms=read_terms(given),
    )
    return Decoded(ask, partial(ResponseWriter, ResponseForm(_facts(given, ask), wants_logprobs)))


def decode_count(body: bytes, limits: RequestLimits) -> ChatRequest:
    """Decode the same body to count its prompt."""
    ask = decode(body, limits).ask
    assert isinstance(ask, ChatRequest)
    return ask


def encode_count(num_tokens: int) -> bytes:
    """Encode the number of tokens."""
    return encode({"object": "response.input_tokens", "input_tokens": num_tokens})


def _included(given: ResponseBody) -> list[str]:
    for place, name in enumerate(given.include or ()):
        if name not in _INCLUDABLE:
            field = f"include[{place}]"
            known = " or ".join(map(repr, _INCLUDABLE))
            raise InvalidRequest(f"{field} is {quoted(name)}; it must be {known}.", field=field)
    return given.include or []


def _tools(given: ResponseBody, limits: RequestLimits) -> list[Tool]:
    found = []
    for place, tool in enumerate(given.tools or ()):
        field = f"tools[{place}]"
        if tool.get("type") != "function":
            raise unsupported_tool(tool.get("type"), field)
        found.append(tool_of(convert_value(tool, FlatTool, field), field, limits))
    return found


def _format(text: ResponsesText | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    if text.format.type == "json_schema" and text.format.schema is None:
        raise InvalidRequest("Missing required parameter: text.format.schema", field="text.format.schema")
    return ResponseFormat(text.format.type, schema=text.format.schema)


def _facts(given: ResponseBody, ask: ChatRequest) -> dict[str, Any]:
    """The fields of the request that the response repeats, with OpenAI's defaults."""
    reasoning, text = given.reasoning or ReasoningField(), given.text or ResponsesText()
    return {
        "instructions": given.instructions,
        "max_output_tokens": given.max_output_tokens,
        "max_tool_calls": given.max_tool_calls,
        "metadata": given.metadata or {},
        "parallel_tool_calls": ask.tool_choice.parallel,
        "previous_response_id": None,
        "prompt_cache_key": given.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": given.safety_identifier,
        "service_tier": "default",
        "store": False,
        "background": False,
        "temperature": ask.sampling.temperature,
        "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity or "medium"},
        "tool_choice": given.tool_choice or "auto",
        "tools": given.tools or [],
        "top_logprobs": given.top_logprobs or 0,
        "top_p": ask.sampling.top_p,
        "truncation": "disabled",
        "user": given.user,
    }


DIALECT = Dialect(
    name="responses",
    endpoints=(GenerateEndpoint(RESPONSES, decode), CountEndpoint(INPUT_TOKENS, decode_count, encode_count)),
    error=error_body,
    headers={},
    schemas=Schemas(dict.fromkeys((RESPONSES, INPUT_TOKENS), (ResponseBody, RESPONSES_REFUSED))),
)
