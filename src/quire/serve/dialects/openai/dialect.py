"""OpenAI's API: chat completions, completions and the list of models; with the fields that other servers have added."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from quire.serve.dialects.body import Refusal, Schemas, read_body
from quire.serve.dialects.contract import Decoded, Dialect, GenerateEndpoint, ListEndpoint, RequestLimits, ShowEndpoint
from quire.serve.dialects.openai import llama_cpp
from quire.serve.dialects.openai.chat_writer import ChatForm, ChatWriter
from quire.serve.dialects.openai.completion_writer import CompletionForm, CompletionWriter
from quire.serve.dialects.openai.constraints import read_constraint
from quire.serve.dialects.openai.content import Content, read_content
from quire.serve.dialects.openai.conversation import ChatMessage, read_messages
from quire.serve.dialects.openai.fields import (
    REFUSED,
    Count,
    CountOrZero,
    Effort,
    Limit,
    ReasoningField,
    ResponseFormat,
    TokenId,
)
from quire.serve.dialects.openai.llama_cpp import LlamaCppFields, agreed_value, repetition_penalty_of
from quire.serve.dialects.openai.replies import encode, error_body
from quire.serve.dialects.openai.sampling import given_parameters, num_logprobs, num_samples, read_sampling
from quire.serve.dialects.openai.terms import read_terms
from quire.serve.dialects.openai.tools import ChatTool, ToolChoiceObject, chat_tools, offer_of
from quire.serve.dialects.strict_json import check_depth
from quire.text.template_variables import KWARGS_FIELD, take_switch, take_thinking
from quire.types.chat import ChatRequest, CompletionRequest, ModelCard
from quire.types.errors import InvalidRequest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DEFAULT_COMPLETION_TOKENS = 16


class OpenAIStreamOptions(Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM


class GenerationBody(LlamaCppFields, kw_only=True):
    """Fields of both endpoints."""

    model: str | None = None  # None: the only one that is served
    n: Count | None = None
    max_tokens: Limit | None = None
    stream: bool | None = None
    stream_options: OpenAIStreamOptions | None = None
    response_format: ResponseFormat | None = None


class Prediction(Struct, forbid_unknown_fields=True):
    """What much of the answer is expected to be: the answer is the same, and comes sooner."""

    type: Literal["content"]
    content: Content


class OpenAIChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: CountOrZero | None = None
    tools: list[ChatTool] | None = None
    tool_choice: str | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningField | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    prediction: Prediction | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions"""

    prompt: str | list[str | TokenId | list[TokenId]]
    best_of: Count | None = None
    logprobs: CountOrZero | None = None
    echo: bool | None = None
    suffix: str | None = None


_ONLY_TEXT = "answers are text."
CHAT_REFUSED = (
    REFUSED
    | llama_cpp.REFUSED
    | {
        "audio": Refusal(_ONLY_TEXT),
        "modalities": Refusal(_ONLY_TEXT, (["text"],)),
        "web_search_options": Refusal("nothing is searched here; give tools."),
        "functions": Refusal("give tools."),
        "function_call": Refusal("give tool_choice."),
        "best_of": Refusal("give n.", (1,)),
        "echo": Refusal("only the answer is returned.", (False,)),
        "chat_template": Refusal("the model's own template is used; see chat_template_kwargs."),
        "add_special_tokens": Refusal("the template alone writes special tokens.", (False,)),
    }
)
COMPLETION_REFUSED = (
    REFUSED
    | llama_cpp.REFUSED
    | {
        "add_special_tokens": Refusal("to decide about special tokens, give the prompt as token ids.", (True,)),
    }
)


def decode_chat(body: bytes, limits: RequestLimits) -> Decoded:
    """Decode a chat completion."""
    given = read_body(body, OpenAIChatBody, CHAT_REFUSED)
    n = num_samples(given.n, limits)
    wants_logprobs = bool(given.logprobs) or bool(given.n_probs)
    top = agreed_value(("top_logprobs", given.top_logprobs), ("n_probs", given.n_probs or None))
    top = num_logprobs(top, limits, "top_logprobs")
    if top is not None and not wants_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", field="top_logprobs")
    given_tools = chat_tools(given.tools or (), limits)
    offer = offer_of(given_tools, given.tool_choice, given.parallel_tool_calls, limits)
    think, variables = _template(given)
    ask = ChatRequest(
        given.model or "",
        read_messages(given.messages),
        read_sampling(
            given,
            limits,
            n=n,
            max_tokens=_chat_tokens(given),
            logprobs=top or 0 if wants_logprobs else None,
            repetition_penalty=repetition_penalty_of(given),
        ),
        given_parameters(given),
        tools=offer.tools,
        tool_choice=offer.choice,
        constraint=read_constraint(given, limits, given.response_format, "response_format"),
        stream=bool(given.stream),
        think=think,
        continue_last=_continues(given),
        template_variables=variables,
        terms=read_terms(given),
        echo=_shows_prompt(given),
        prediction=read_content(given.prediction.content, "prediction.content").text if given.prediction else "",
    )
    shown = (wants_logprobs, bool(given.return_token_ids), given.prompt_logprobs is not None)
    return Decoded(ask, partial(ChatWriter, ChatForm(n, _usage(given), *shown)))


def decode_completion(body: bytes, limits: RequestLimits) -> Decoded:
    """Decode a completion of one prompt or several."""
    given = read_body(body, CompletionBody, COMPLETION_REFUSED)
    n = num_samples(given.n, limits)
    if given.best_of is not None and given.best_of != n:
        raise InvalidRequest(f"best_of is {given.best_of} and n is {n}; they must be the same.", field="best_of")
    logprobs = agreed_value(("logprobs", given.logprobs), ("n_probs", given.n_probs or None))
    logprobs = num_logprobs(logprobs, limits, "logprobs")
    echo = bool(given.echo)
    if echo and given.suffix:
        raise InvalidRequest("echo does not go with suffix: only the text between the two is returned.", field="echo")
    max_tokens = _limit(given, given.max_tokens)
    if max_tokens is None:
        max_tokens = DEFAULT_COMPLETION_TOKENS
    if max_tokens == 0 and not echo:
        raise InvalidRequest("max_tokens is 0; it must be at least 1, unless echo is true.", field="max_tokens")
    of_prompt = {"prompt_logprobs": logprobs} if echo and given.prompt_logprobs is None else {}
    ask = CompletionRequest(
        given.model or "",
        _prompts(given.prompt, limits),
        read_sampling(
            given,
            limits,
            n=n,
            max_tokens=None if max_tokens < 0 else max(max_tokens, 1),
            logprobs=logprobs,
            repetition_penalty=repetition_penalty_of(given),
            **of_prompt,
        ),
        given_parameters(given),
        constraint=read_constraint(given, limits, given.response_format, "response_format"),
        stream=bool(given.stream),
        echo=echo or _shows_prompt(given),
        terms=read_terms(given),
        suffix=given.suffix or "",
    )
    shown = (logprobs is not None, bool(given.return_token_ids), given.prompt_logprobs is not None)
    form = CompletionForm(_usage(given), *shown, echo=echo, answer=max_tokens != 0)
    return Decoded(ask, partial(CompletionWriter, form))


def encode_models(cards: Sequence[ModelCard]) -> bytes:
    """Encode the list of models."""
    return encode({"object": "list", "data": [_model(card) for card in cards]})


def encode_model(card: ModelCard) -> bytes:
    """Encode one model."""
    return encode(_model(card))


def _model(card: ModelCard) -> dict[str, Any]:
    """`max_model_len` is vLLM's name for the context; `loaded` is our own: whether it is in memory."""
    facts = {
        "id": card.name,
        "object": "model",
        "created": int(card.created),
        "owned_by": "quire",
        "loaded": card.is_loaded,
    }
    return facts | ({"max_model_len": card.max_context} if card.max_context else {})


def _usage(given: GenerationBody) -> bool:
    """Does the stream end with the usage?"""
    options = given.stream_options
    if options is None:
        return False
    if not given.stream:
        raise InvalidRequest("stream_options needs stream: true.", field="stream_options")
    for name, why in (
        ("include_obfuscation", "chunks are not padded."),
        ("continuous_usage_stats", "the usage comes once, at the end; see include_usage."),
    ):
        if getattr(options, name):
            raise InvalidRequest(f"stream_options.{name} is not supported: {why}", field=f"stream_options.{name}")
    return bool(options.include_usage)


def _shows_prompt(given: GenerationBody) -> bool:
    if given.prompt_logprobs is not None and given.stream:
        raise InvalidRequest("prompt_logprobs does not go with stream: true.", field="prompt_logprobs")
    return bool(given.return_token_ids) or given.prompt_logprobs is not None


def _chat_tokens(given: OpenAIChatBody) -> int | None:
    new, old = given.max_completion_tokens, given.max_tokens
    if new is not None and old is not None and new != old:
        raise InvalidRequest("max_tokens and max_completion_tokens differ: give one of them.", field="max_tokens")
    limit = _limit(given, old if new is None else new)
    if limit == 0:
        raise InvalidRequest("max_tokens is 0; it must be at least 1.", field="max_tokens")
    return None if limit is None or limit < 0 else limit


def _limit(given: GenerationBody, max_tokens: int | None) -> int | None:
    """The limit under OpenAI's name or llama.cpp's. Negative: until the context is full. None: not given."""
    limit: int | None = agreed_value(("max_tokens", max_tokens), ("n_predict", given.n_predict))
    return limit


def _template(given: OpenAIChatBody) -> tuple[bool | None, dict[str, Any]]:
    """Whether to think, and the template's other variables."""
    nested = given.reasoning.effort if given.reasoning else None
    variables = dict(given.chat_template_kwargs or {})
    check_depth(variables, KWARGS_FIELD)
    for name in ("add_generation_prompt", "continue_final_message"):
        setattr(given, name, take_switch(variables, name, getattr(given, name)))
    think = take_thinking(variables, given.reasoning_effort or nested)
    if given.documents is not None:
        check_depth(given.documents, "documents")
        variables.setdefault("documents", given.documents)
    return think, variables


def _continues(given: OpenAIChatBody) -> bool:
    if given.continue_final_message:
        if given.add_generation_prompt:
            public = "continue_final_message and add_generation_prompt exclude each other."
            raise InvalidRequest(public, field="add_generation_prompt")
        if given.messages[-1].role != "assistant":
            public = "continue_final_message needs a last message of the role 'assistant'."
            raise InvalidRequest(public, field="continue_final_message")
        return True
    if given.add_generation_prompt is False:
        public = "add_generation_prompt is false; that needs continue_final_message: true."
        raise InvalidRequest(public, field="add_generation_prompt")
    return False


def _prompts(given: str | list[Any], limits: RequestLimits) -> tuple[str | tuple[int, ...], ...]:
    """The prompts: one text or several, token ids of one or of several."""
    if isinstance(given, str):
        return (given,)
    kinds = {type(item) for item in given}
    if len(kinds) != 1 or [] in given:
        public = "prompt must be a string, a list of strings, a list of token ids or a list of such lists; not empty."
        raise InvalidRequest(public, field="prompt")
    if kinds == {int}:
        return (tuple(given),)
    if len(given) > limits.max_prompts:
        raise InvalidRequest(f"There are {len(given)} prompts; at most {limits.max_prompts} are allowed.", "prompt")
    return tuple(item if isinstance(item, str) else tuple(item) for item in given)


DIALECT = Dialect(
    name="openai",
    endpoints=(
        GenerateEndpoint(CHAT, decode_chat),
        GenerateEndpoint(COMPLETIONS, decode_completion),
        ListEndpoint("/v1/models", encode_models),
        ShowEndpoint("/v1/models/{name}", encode_model),
    ),
    error=error_body,
    headers={},
    schemas=Schemas({CHAT: (OpenAIChatBody, CHAT_REFUSED), COMPLETIONS: (CompletionBody, COMPLETION_REFUSED)}),
)
