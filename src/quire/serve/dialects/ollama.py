"""Ollama's API: /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version.

A request with no prompt or no messages loads the model, or unloads it if its keep_alive is 0. Sampling has Ollama's
defaults, not the model's. Names are as this server has them: no tag is added.
"""

from __future__ import annotations

from functools import partial

from quire.serve.body import DOTS, Schemas, read
from quire.serve.dialect import Decoded, Dialect, Generates, Limits, Lists, Shows, Tells
from quire.serve.ollama_body import (
    ChatBody,
    Common,
    GenerateBody,
    Number,
    Options,
    ShowBody,
    ToolBody,
)
from quire.serve.ollama_conversation import conversation
from quire.serve.ollama_lines import LineWriter, LoadWriter, error_body
from quire.serve.ollama_models import running, shown, tags, version
from quire.serve.request_limits import check_tools, schema_text, stops
from quire.types.chat import ChatRequest, CompletionRequest, Message, Terms, Tool
from quire.types.duration import seconds_of
from quire.types.errors import InvalidRequest
from quire.types.request import Constraint, ConstraintKind, SamplingParams

_MAX_INT = 2**31 - 1
_MAX_SEED = 2**63
_LIKELIEST_ONLY = 1e-6  # a top_p of 0: the smallest share that still has a token in it


def decode_chat(body: bytes, limits: Limits) -> Decoded:
    """A conversation to be answered."""
    asked = read(body, ChatBody, spelling=DOTS)
    if not asked.messages:
        return _load(asked, chats=True)
    messages = conversation(asked.messages)
    ask = ChatRequest(
        model=asked.model,
        messages=messages,
        sampling=_sampling(asked, limits),
        tools=_tools(asked.tools or [], limits),
        constraint=_constraint(asked, limits),
        stream=asked.stream is not False,
        think=_think(asked),
        continue_last=messages[-1].role == "assistant" and not messages[-1].tool_calls,
        template_variables=_effort(asked),
        terms=_terms(asked),
    )
    return Decoded(ask, partial(LineWriter, chats=True))


def decode_generate(body: bytes, limits: Limits) -> Decoded:
    """A prompt to be answered, or as it is if it is raw."""
    asked = read(body, GenerateBody, spelling=DOTS)
    if asked.raw and (asked.template or asked.system or asked.context):
        raise InvalidRequest("raw: raw mode does not support template, system, or context", field="raw")
    for name, instead in _REFUSED.items():
        if getattr(asked, name):
            raise InvalidRequest(f"{name}: Not supported. {instead}", field=name)
    if not asked.prompt:
        return _load(asked, chats=False)
    sampling, constraint = _sampling(asked, limits), _constraint(asked, limits)
    ask: ChatRequest | CompletionRequest
    if asked.raw:
        ask = CompletionRequest(
            model=asked.model,
            prompts=(asked.prompt,),
            sampling=sampling,
            constraint=constraint,
            stream=asked.stream is not False,
            terms=_terms(asked),
        )
    else:
        system = (Message("system", asked.system),) if asked.system else ()
        ask = ChatRequest(
            model=asked.model,
            messages=(*system, Message("user", asked.prompt)),
            sampling=sampling,
            constraint=constraint,
            stream=asked.stream is not False,
            think=_think(asked),
            template_variables=_effort(asked),
            terms=_terms(asked),
        )
    return Decoded(ask, partial(LineWriter, chats=False))


_REFUSED = {
    "suffix": "This server does not fill in the middle.",
    "template": "The model's own template is used; with raw, none is.",
    "context": "Send the conversation to /api/chat: its tokens are found in the cache.",
    "images": "This server reads text.",
}


def name_to_show(body: bytes) -> str:
    """Which model /api/show is to show."""
    asked = read(body, ShowBody, spelling=DOTS)
    if not (name := asked.model or asked.name):
        raise InvalidRequest("model: Field required", field="model")
    return name


def _load(asked: Common, chats: bool) -> Decoded:
    terms = _terms(asked)
    reason = "unload" if terms.keep_alive == 0 else "load"
    return Decoded(CompletionRequest(asked.model, (), terms=terms), partial(LoadWriter, chats=chats, reason=reason))


def _terms(asked: Common) -> Terms:
    if asked.debug_render_only:
        raise InvalidRequest("_debug_render_only: Not supported", field="_debug_render_only")
    return Terms(keep_alive=None if asked.keep_alive is None else seconds_of(asked.keep_alive, "keep_alive"))


def _think(asked: Common) -> bool | None:
    return None if asked.think is None else bool(asked.think)


def _effort(asked: Common) -> dict[str, str]:
    return {"reasoning_effort": asked.think} if isinstance(asked.think, str) else {}


def _sampling(asked: Common, limits: Limits) -> SamplingParams:
    """Values beyond their range mean what llama.cpp makes of them: off, or only the likeliest token."""
    options = asked.options or Options()
    num_predict, seed = _whole(options.num_predict, -1), _whole(options.seed, -1)
    if not -_MAX_SEED <= seed < _MAX_SEED:
        raise InvalidRequest("options.seed: Does not fit into 64 bits", field="options.seed")
    most = min(20, limits.max_logprobs)
    if not 0 <= (num_top := asked.top_logprobs or 0) <= most:
        raise InvalidRequest(f"top_logprobs must be between 0 and {most}", field="top_logprobs")
    return SamplingParams(
        max_tokens=min(num_predict, _MAX_INT)
        if num_predict > 0
        else None,  # -1: no limit, -2: until the context is full
        temperature=max(_or(options.temperature, 0.8), 0.0),
        top_k=min(max(_whole(options.top_k, 40), 0), _MAX_INT),
        top_p=_share(options.top_p, 0.9),
        min_p=min(max(_or(options.min_p, 0.0), 0.0), 1.0),
        typical_p=_share(options.typical_p, 1.0),
        repetition_penalty=_or(options.repeat_penalty, 1.0),
        presence_penalty=_or(options.presence_penalty, 0.0),
        frequency_penalty=_or(options.frequency_penalty, 0.0),
        stop=stops([stop for stop in options.stop or () if stop], limits, "options.stop"),
        seed=None if seed == -1 else seed,
        logprobs=num_top if asked.logprobs else None,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _whole(value: Number | None, default: int) -> int:
    return default if value is None else int(value)


def _share(value: float | None, default: float) -> float:
    return min(max(_or(value, default), _LIKELIEST_ONLY), 1.0)


def _constraint(asked: Common, limits: Limits) -> Constraint | None:
    if not asked.format and not isinstance(asked.format, dict):
        return None
    if asked.format == "json":
        return Constraint(ConstraintKind.JSON)
    if isinstance(asked.format, str):
        what = f'invalid format: {asked.format[:64]!r}; expected "json" or a JSON schema'
        raise InvalidRequest(f"format: {what}", field="format")
    return Constraint(ConstraintKind.SCHEMA, schema_text(asked.format, limits, "format"))


def _tools(given: list[ToolBody], limits: Limits) -> tuple[Tool, ...]:
    check_tools([tool.function.name for tool in given], limits, "tools")
    for place, tool in enumerate(given):
        schema_text(tool.function.parameters or {}, limits, f"tools.{place}.function.parameters")
    functions = [tool.function for tool in given]
    return tuple(Tool(each.name, each.description or "", each.parameters or {}) for each in functions)


DIALECT = Dialect(
    name="ollama",
    endpoints=(
        Generates("/api/chat", decode_chat, LineWriter.content_type),
        Generates("/api/generate", decode_generate, LineWriter.content_type),
        Lists("/api/tags", tags),
        Lists("/api/ps", running, only_loaded=True),
        Shows("/api/show", shown, name_to_show),
        Tells("/api/version", version),
    ),
    error=error_body,
    headers={},
    schemas=Schemas(
        {"/api/chat": (ChatBody, None), "/api/generate": (GenerateBody, None), "/api/show": (ShowBody, None)}
    ),
)
