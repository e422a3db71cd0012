"""Requests and answers, independent of any API. Every dialect decodes into these and encodes from them.

A `ChatRequest` has messages, a `CompletionRequest` has prompts; both are an `Ask`. The answer is a stream of events,
PromptEcho? (TextDelta | ReasoningDelta | ToolDelta)* Finish for each choice, interleaved; or all of them collected
in an `Answered`. Events are named tuples, since there is one for every token of every stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from quire.types.answer import Usage
from quire.types.defaults import SamplingDefaults
from quire.types.message import Message, ToolCall
from quire.types.request import Constraint, SamplingParams


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # a JSON schema; empty: any object
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, must or must not call a tool; `name`: the tool that it must call."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True  # more than one call in an answer; required calls: only if the client set it


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request is scheduled, cached and limited. An API key may tighten these."""

    id: str | None = None  # the client's id for the request
    priority: int = 0  # lower is served first
    salt: str = ""  # separates cached prefixes
    session: str | None = None
    timeout: float | None = None  # seconds until it fails
    keep: float | None = None  # pin the whole prompt for so many seconds
    keep_rank: int = 50
    max_context: int | None = None  # tokens of prompt and answer together, if fewer than the model's
    keep_alive: float | None = None  # seconds that the model stays loaded afterwards; negative: for ever
    user: str = ""  # end user, as the client names them
    metadata: Mapping[str, str] = field(default_factory=dict)  # for the rules of routes


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Answer a conversation."""

    model: str
    messages: tuple[Message, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampling_fields: frozenset[str] = frozenset()  # that the client set; the others may take the model's defaults
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    constraint: Constraint | None = None
    stream: bool = False
    think: bool | None = None  # None: the template's default
    continue_last: bool = False  # the last message is the assistant's, to be continued
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    terms: Terms = field(default_factory=Terms)
    echo: bool = False  # send the prompt first, in a PromptEcho
    prediction: str = ""  # text that much of the answer is expected to be


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Complete each prompt: text, or token ids. Choice `i * n + s` is sample s of prompt i.

    Without prompts it only loads the model, or with a `keep_alive` of 0 unloads it.
    """

    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampling_fields: frozenset[str] = frozenset()  # that the client set; the others may take the model's defaults
    constraint: Constraint | None = None
    stream: bool = False
    echo: bool = False  # send the prompt first, in a PromptEcho; the dialect may make it part of the text
    terms: Terms = field(default_factory=Terms)
    suffix: str = ""  # text after the gap that the answer fills


Ask = ChatRequest | CompletionRequest


class Ending(StrEnum):
    """Why a choice ended."""

    STOP = "stop"  # the model's end token
    STOP_TEXT = "stop_text"  # a stop string or stop token of the request
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"


class ScoredToken(NamedTuple):
    """A token with its log probability, and the likeliest alternatives at its position."""

    id: int
    text: str
    bytes: bytes
    logprob: float | None  # None: the first token of a prompt has none
    top: tuple[ScoredToken, ...] = ()


class PromptEcho(NamedTuple):
    """The prompt, of a request with `echo`."""

    choice: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()


class TextDelta(NamedTuple):
    """More of the answer's text."""

    choice: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()


class ReasoningDelta(NamedTuple):
    """More of the model's reasoning."""

    choice: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()


class ToolDelta(NamedTuple):
    """The start of a tool call (with id and name), or more of its arguments."""

    choice: int
    call: int  # index among the calls of its choice
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()


class Finish(NamedTuple):
    """The last event of a choice."""

    choice: int
    ending: Ending
    stop: str | int | None = None  # the stop string or token that ended it


Event = PromptEcho | TextDelta | ReasoningDelta | ToolDelta | Finish


@dataclass(frozen=True, slots=True)
class Choice:
    """One complete answer."""

    index: int
    text: str
    ending: Ending
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stop: str | int | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()  # of all its tokens: text, reasoning and calls
    prompt: PromptEcho | None = None
    text_logprobs: tuple[ScoredToken, ...] = ()  # of those, the text's


@dataclass(frozen=True, slots=True)
class Answered:
    """All choices, in order."""

    choices: tuple[Choice, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a server reports about a model that it serves."""

    name: str
    created: float = 0.0  # seconds since 1970
    num_bytes: int = 0
    digest: str = ""
    format: str = ""  # of its files: "gguf" or "safetensors"
    architecture: str = ""
    num_parameters: int = 0
    quantization: str = ""
    max_context: int = 0
    template: str = ""
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)  # with Ollama's names
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    messages: tuple[Message, ...] = ()  # at the start of every conversation
    modelfile: str = ""  # that recreates it
    license: str = ""
    capabilities: tuple[str, ...] = ("completion",)  # and "tools", "thinking", or "embedding", …
    metadata: Mapping[str, Any] = field(default_factory=dict)  # of its file: plain values only
    is_loaded: bool = True
    loaded_bytes: int = 0  # memory that its engine may use
    used_bytes: int = 0  # memory that it uses now; 0: unknown
    accelerator_bytes: int = 0  # of loaded_bytes, in the memory of an accelerator
    shares_with: str = ""  # the model whose engine serves this one too; their memory is the same
    expires: float | None = None  # when it will be unloaded; None: never
