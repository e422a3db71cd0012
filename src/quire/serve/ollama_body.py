"""The bodies of Ollama's API. As there, a field or an option that is not here is ignored, and a null is no field.

Options that choose how a model is loaded (num_ctx, num_gpu, …) have their types checked and change nothing: a model is
loaded once, for everyone. What does not fit its context is refused with both numbers, never cut short.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from quire.types.errors import InvalidRequest

Number = int | float  # where Go's reader takes any number and drops the fraction
Penalty = Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
Factor = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
Name = Annotated[str, msgspec.Meta(min_length=1)]

MAX_SECONDS = 2**63 / 1e9  # what a duration of Go's holds
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"([-+]?)((?:{_PART})+|0)")


class Loose(msgspec.Struct):
    """Other fields are ignored."""


class Function(Loose):
    """What a tool is."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(Loose):
    """A function that the model may call."""

    function: Function
    type: str | None = None


class CalledFunction(Loose):
    """Which function was called, with what."""

    name: Name
    arguments: dict[str, Any] | None = None


class CallBody(Loose):
    """A call that the assistant made."""

    function: CalledFunction
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


class Common(Loose):
    """What both ways of asking have."""

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
    debug_render_only: bool | None = msgspec.field(default=None, name="_debug_render_only")


class ChatBody(Common):
    """/api/chat."""

    messages: list[MessageBody] | None = None
    tools: list[ToolBody] | None = None


class GenerateBody(Common):
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
    name: str | None = None  # as older clients say it
    verbose: bool | None = None


def seconds_of(keep_alive: str | float | None) -> float | None:
    """A number of seconds, or a duration as Go writes it (1h30m). Negative: for ever."""
    if keep_alive is None:
        return None
    if isinstance(keep_alive, str):
        found = _DURATION.fullmatch(keep_alive) if len(keep_alive) < 100 else None
        if not found:
            what = f"{keep_alive[:100]!r} is not a duration, such as 5m, 1h30m or -1s"
            raise InvalidRequest(f"keep_alive: {what}", field="keep_alive")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, found[2]))
        keep_alive = -seconds if found[1] == "-" else seconds
    if keep_alive > MAX_SECONDS:
        raise InvalidRequest("keep_alive: Longer than a duration can be", field="keep_alive")
    return max(float(keep_alive), -1.0)
