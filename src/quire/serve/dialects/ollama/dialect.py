"""Ollama's API: /api/chat, /api/generate, and models: /api/tags, /api/show, /api/create, …

A request with no prompt or no messages loads the model, or unloads it if its keep_alive is 0. Sampling has the model's
defaults, and Ollama's where the model has none. Names are this server's own: no tag is added.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from quire.serve.dialects.body import DOTS, Schemas, read_body
from quire.serve.dialects.contract import (
    BlobEndpoint,
    ChangeEndpoint,
    Decoded,
    Dialect,
    GenerateEndpoint,
    ListEndpoint,
    RequestLimits,
    ShowEndpoint,
    VectorEndpoint,
    VersionEndpoint,
)
from quire.serve.dialects.ollama.body import (
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    Options,
    ShowBody,
    ToolBody,
)
from quire.serve.dialects.ollama.changes import (
    CopyBody,
    CreateBody,
    NamedBody,
    decode_copy,
    decode_create,
    decode_delete,
    decode_pull,
    decode_push,
)
from quire.serve.dialects.ollama.conversation import read_conversation
from quire.serve.dialects.ollama.embed import EmbedBody, OldEmbedBody, decode_embed, decode_old_embed
from quire.serve.dialects.ollama.models import encode_model, encode_running, encode_tags, encode_version
from quire.serve.dialects.ollama.writer import LineWriter, LoadWriter, error_body
from quire.serve.dialects.request_limits import check_stops, check_tools, limited_schema_text
from quire.text.preset import MIN_CONTEXT
from quire.types.chat import ChatRequest, CompletionRequest, Terms, Tool
from quire.types.duration import seconds_of
from quire.types.errors import InvalidRequest
from quire.types.message import Message
from quire.types.parameters import sampling_of
from quire.types.request import Constraint, ConstraintKind, SamplingParams

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}  # Ollama's


def decode_chat(body: bytes, limits: RequestLimits) -> Decoded:
    """Decode a conversation."""
    request = read_body(body, OllamaChatBody, spelling=DOTS)
    if not request.messages:
        return _load(request, chats=True)
    messages = read_conversation(request.messages)
    ask = ChatRequest(
        model=request.model,
        messages=messages,
        **_sampling(request, limits),
        tools=_tools(request.tools or [], limits),
        constraint=_constraint(request, limits),
        stream=request.stream is not False,
        think=_think(request),
        continue_last=messages[-1].role == "assistant" and not messages[-1].tool_calls,
        template_variables=_effort(request),
        terms=_terms(request),
    )
    return Decoded(ask, partial(LineWriter, chats=True))


def decode_generate(body: bytes, limits: RequestLimits) -> Decoded:
    """Decode a prompt: a message of the user, or plain text if `raw`."""
    request = read_body(body, OllamaGenerateBody, spelling=DOTS)
    if request.raw and (request.template or request.system or request.context):
        raise InvalidRequest("raw: raw mode does not support template, system, or context", field="raw")
    for name, instead in _REFUSED.items():
        if getattr(request, name):
            raise InvalidRequest(f"{name}: Not supported. {instead}", field=name)
    if request.suffix and request.system:
        raise InvalidRequest("system: Does not go with suffix: no template is used to fill in the middle", "system")
    if not request.prompt and not request.suffix:
        return _load(request, chats=False)
    sampling, constraint = _sampling(request, limits), _constraint(request, limits)
    ask: ChatRequest | CompletionRequest
    prompt = request.prompt or ""
    if request.raw or request.suffix:
        ask = CompletionRequest(
            model=request.model,
            prompts=(prompt,),
            **sampling,
            constraint=constraint,
            stream=request.stream is not False,
            terms=_terms(request),
            suffix=request.suffix or "",
        )
    else:
        system = (Message("system", request.system),) if request.system else ()
        ask = ChatRequest(
            model=request.model,
            messages=(*system, Message("user", prompt)),
            **sampling,
            constraint=constraint,
            stream=request.stream is not False,
            think=_think(request),
            template_variables=_effort(request),
            terms=_terms(request),
        )
    return Decoded(ask, partial(LineWriter, chats=False))


_REFUSED = {
    "template": "The model's own template is used; with raw, none is.",
    "context": "Send the conversation to /api/chat: its tokens are found in the cache.",
    "images": "This server reads text.",
}


def name_to_show(body: bytes) -> str:
    """The name of the model that /api/show shows."""
    request = read_body(body, ShowBody, spelling=DOTS)
    if not (name := request.model or request.name):
        raise InvalidRequest("model: Field required", field="model")
    return name


def _load(request: OllamaBody, chats: bool) -> Decoded:
    terms = _terms(request)
    reason = "unload" if terms.keep_alive == 0 else "load"
    return Decoded(CompletionRequest(request.model, (), terms=terms), partial(LoadWriter, chats=chats, reason=reason))


def _terms(request: OllamaBody) -> Terms:
    if request.debug_render_only:
        raise InvalidRequest("_debug_render_only: Not supported", field="_debug_render_only")
    num_ctx = int(request.options.num_ctx or 0) if request.options else 0
    return Terms(
        keep_alive=None if request.keep_alive is None else seconds_of(request.keep_alive, "keep_alive"),
        max_context=num_ctx if num_ctx >= MIN_CONTEXT else None,
    )


def _think(request: OllamaBody) -> bool | None:
    return None if request.think is None else bool(request.think)


def _effort(request: OllamaBody) -> dict[str, str]:
    return {"reasoning_effort": request.think} if isinstance(request.think, str) else {}


def _sampling(request: OllamaBody, limits: RequestLimits) -> dict[str, Any]:
    """The sampling parameters, and the names of those that the client gives; the others are Ollama's defaults."""
    options = request.options or Options()
    given = {name: value for name, value in msgspec.structs.asdict(options).items() if value is not None}
    most = min(20, limits.max_logprobs)
    if not 0 <= (num_top := request.top_logprobs or 0) <= most:
        raise InvalidRequest(f"top_logprobs must be between 0 and {most}", field="top_logprobs")
    chosen = sampling_of(given, "options.")
    if request.speculate is not None:
        chosen["speculate"] = request.speculate
    check_stops(chosen.get("stop", ()), limits, "options.stop")
    sampling = SamplingParams(**(DEFAULTS | chosen), logprobs=num_top if request.logprobs else None)
    return {"sampling": sampling, "sampling_fields": frozenset(chosen)}


def _constraint(request: OllamaBody, limits: RequestLimits) -> Constraint | None:
    if not request.format and not isinstance(request.format, dict):
        return None
    if request.format == "json":
        return Constraint(ConstraintKind.JSON)
    if isinstance(request.format, str):
        what = f'invalid format: {request.format[:64]!r}; expected "json" or a JSON schema'
        raise InvalidRequest(f"format: {what}", field="format")
    return Constraint(ConstraintKind.SCHEMA, limited_schema_text(request.format, limits, "format"))


def _tools(given: list[ToolBody], limits: RequestLimits) -> tuple[Tool, ...]:
    check_tools([tool.function.name for tool in given], limits, "tools")
    for place, tool in enumerate(given):
        limited_schema_text(tool.function.parameters or {}, limits, f"tools.{place}.function.parameters")
    functions = [tool.function for tool in given]
    return tuple(Tool(each.name, each.description or "", each.parameters or {}) for each in functions)


DIALECT = Dialect(
    name="ollama",
    endpoints=(
        GenerateEndpoint("/api/chat", decode_chat, LineWriter.content_type),
        GenerateEndpoint("/api/generate", decode_generate, LineWriter.content_type),
        VectorEndpoint("/api/embed", decode_embed),
        VectorEndpoint("/api/embeddings", decode_old_embed),
        ListEndpoint("/api/tags", encode_tags),
        ListEndpoint("/api/ps", encode_running, only_loaded=True),
        ShowEndpoint("/api/show", encode_model, name_to_show),
        VersionEndpoint("/api/version", encode_version),
        ChangeEndpoint("/api/create", decode_create),
        ChangeEndpoint("/api/copy", decode_copy),
        ChangeEndpoint("/api/delete", decode_delete, "DELETE"),
        ChangeEndpoint("/api/pull", decode_pull),
        ChangeEndpoint("/api/push", decode_push),
        BlobEndpoint("/api/blobs/{digest}", "HEAD"),
        BlobEndpoint("/api/blobs/{digest}"),
    ),
    error=error_body,
    headers={},
    schemas=Schemas(
        {
            "/api/chat": (OllamaChatBody, None),
            "/api/generate": (OllamaGenerateBody, None),
            "/api/embed": (EmbedBody, None),
            "/api/embeddings": (OldEmbedBody, None),
            "/api/show": (ShowBody, None),
            "/api/create": (CreateBody, None),
            "/api/copy": (CopyBody, None),
            "/api/delete": (NamedBody, None),
            "/api/pull": (NamedBody, None),
            "/api/push": (NamedBody, None),
        }
    ),
)
