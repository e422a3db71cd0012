"""The bodies of Ollama's API. As in Ollama, unknown fields and options are ignored, and null is the same as no field.

num_ctx limits prompt and answer together. Other options for loading a model (num_gpu, num_thread, …) have their types
checked and change nothing: a model is loaded once, for all clients. A prompt that does not fit the context is refused
with both numbers, never truncated.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Number = int | float  # Go's reader accepts any number and drops the fraction
Penalty = Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
Factor = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Loose(msgspec.Struct):
    """Other fields are ignored."""


class OllamaFunction(Loose):
    """The function of a tool."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(Loose):
    """A function that the model may call."""

    function: OllamaFunction
    type: str | None = None


class OllamaCalledFunction(Loose):
    """The function of a call, and its arguments."""

    name: Name
    arguments: dict[str, Any] | None = None


class CallBody(Loose):
    """A call that the assistant made."""

    function: OllamaCalledFunction
    id: str | None = None


class MessageBody(Loose):
    """One message."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[CallBody] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Options(Loose):
    """How tokens are chosen."""

    num_predict: Number | None = None
    temperature: float | None = None
    top_k: Number | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: Factor | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Number | None = None
    stop: list[str] | None = None
    repeat_last_n: Number | None = None  # penalties look at the whole text here
    num_keep: Number | None = None
    num_ctx: Number | None = None
    num_batch: Number | None = None
    num_gpu: Number | None = None
    main_gpu: Number | None = None
    num_thread: Number | None = None
    draft_num_predict: Number | None = None
    use_mmap: bool | None = None


class OllamaBody(Loose):
    """The fields of both endpoints."""

    model: Name
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    keep_alive: str | float | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None  # nothing is ever truncated
    shift: bool | None = None
    speculate: bool | str | None = None  # ours: auto or off
    debug_render_only: bool | None = msgspec.field(default=None, name="_debug_render_only")


class OllamaChatBody(OllamaBody):
    """/api/chat."""

    messages: list[MessageBody] | None = None
    tools: list[ToolBody] | None = None


class OllamaGenerateBody(OllamaBody):
    """/api/generate."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None


class ShowBody(Loose):
    """/api/show."""

    model: str | None = None
    name: str | None = None  # older clients' name
    verbose: bool | None = None
