"""What a client asks and is told, in our own words. Every dialect decodes into these, and encodes from them.

A `ChatRequest` has messages, a `CompletionRequest` has prompts as they are; both are an `Ask`. What comes back are
events, PromptEcho? (TextDelta | ReasoningDelta | ToolDelta)* Finish for each choice, interleaved as they come; or all
of them gathered in an `Answered`. Events are tuples with names: there is one for every token of every stream.
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
    """Whether the model may, must or must not call; `name` is the one that it must."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True  # more than one call in an answer; of required ones only if the client said so


@dataclass(frozen=True, slots=True)
class Terms:
    """How a request is to be treated, beside what it asks. An API key may tighten these."""

    id: str | None = None  # the client's own name for it
    priority: int = 0  # lower is served first
    salt: str = ""  # separates cached prefixes
    session: str | None = None
    timeout: float | None = None  # seconds until it fails
    keep: float | None = None  # pin the whole prompt for so many seconds
    keep_rank: int = 50
    max_context: int | None = None  # tokens of prompt and answer together, if fewer than the model's
    keep_alive: float | None = None  # seconds that the model stays loaded afterwards; negative: for ever
    user: str = ""  # on whose behalf the client asks, in the client's words
    metadata: Mapping[str, str] = field(default_factory=dict)  # facts that rules of routes may look at


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Answer a conversation."""

    model: str
    messages: tuple[Message, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    said: frozenset[str] = frozenset()  # what of that the client said; the rest may be the model's own
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    constraint: Constraint | None = None
    stream: bool = False
    think: bool | None = None  # None: as the template has it
    continue_last: bool = False  # the last message is the assistant's and is to be gone on with
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    terms: Terms = field(default_factory=Terms)
    echo: bool = False  # tell the prompt first, in a PromptEcho


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Go on with each prompt: a text, or token ids. Choice `i * n + s` is sample s of prompt i.

    No prompt at all asks for the model alone: that it is loaded, or with a `keep_alive` of 0 that it is not.
    """

    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    said: frozenset[str] = frozenset()  # what of that the client said; the rest may be the model's own
    constraint: Constraint | None = None
    stream: bool = False
    echo: bool = False  # tell the prompt first, in a PromptEcho; whether it becomes part of the text is the writer's
    terms: Terms = field(default_factory=Terms)
    suffix: str = ""  # what stands after the answer, which is to fill the gap between the prompt and this


Ask = ChatRequest | CompletionRequest


class Ending(StrEnum):
    """Why a choice ended."""

    STOP = "stop"  # the model's own end
    STOP_TEXT = "stop_text"  # a stop string or stop token of the request
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"


class ScoredToken(NamedTuple):
    """A token with its log probability, and the likeliest at its place."""

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
    """More of what the model thinks before it answers."""

    choice: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()


class ToolDelta(NamedTuple):
    """A call begins (it has an id and a name), or its arguments go on."""

    choice: int
    call: int  # its place among the calls of its choice
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()


class Finish(NamedTuple):
    """The last event of a choice."""

    choice: int
    ending: Ending
    stop: str | int | None = None  # the stop string or token that was met


Event = PromptEcho | TextDelta | ReasoningDelta | ToolDelta | Finish


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer."""

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
    """All choices, in their order."""

    choices: tuple[Choice, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a server says of a model that it serves."""

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
    parameters: Mapping[str, Any] = field(default_factory=dict)  # in Ollama's words
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    messages: tuple[Message, ...] = ()  # that conversations begin with
    modelfile: str = ""  # that makes it again
    license: str = ""
    capabilities: tuple[str, ...] = ("completion",)  # and "tools", "thinking"
    metadata: Mapping[str, Any] = field(default_factory=dict)  # of its file, as far as it is plain
    is_loaded: bool = True
    loaded_bytes: int = 0  # that its engine may use
    used_bytes: int = 0  # of those, that it uses now; 0: it does not say
    accelerator_bytes: int = 0  # of those that it may use, in the memory of an accelerator
    shares_with: str = ""  # the model whose engine answers for this one too: their bytes are the same
    expires: float | None = None  # when it will be unloaded; None: never
