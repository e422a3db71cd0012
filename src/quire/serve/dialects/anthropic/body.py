"""The bodies of /v1/messages and /v1/messages/count_tokens: their fields, as Anthropic's API has them.

A field that is not here is refused by its name. One that is only `None` is known there and cannot be done here: a null
is taken, anything else is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MAX_INT = 2**31 - 1

Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """No other fields than these."""


class AnthropicCacheControl(Strict):
    """A mark: keep the prompt up to here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def seconds(self) -> float:
        """How long."""
        return 3600.0 if self.ttl == "1h" else 300.0


class TextBlock(Strict, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: AnthropicCacheControl | None = None
    citations: list[Any] | None = None  # of an earlier answer; they are not the model's to read


class Caller(Strict):
    """Who made a call: the model itself."""

    type: Literal["direct"]


class ToolUseBlock(Strict, tag_field="type", tag="tool_use"):
    """A call that the assistant made."""

    id: Name
    name: Name
    input: dict[str, Any]
    cache_control: AnthropicCacheControl | None = None
    caller: Caller | None = None
    toolset_name: None = None


class ToolResultBlock(Strict, tag_field="type", tag="tool_result"):
    """What a call returned."""

    tool_use_id: Name
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: AnthropicCacheControl | None = None
    toolset_name: None = None


class ThinkingBlock(Strict, tag_field="type", tag="thinking"):
    """What the assistant thought. We sign nothing, so the signature is not looked at."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Strict, tag_field="type", tag="redacted_thinking"):
    """What another server's model thought, unreadable here."""

    data: str


Block = TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock


class Turn(Strict):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CustomTool(Strict):
    """A function that the client runs."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: AnthropicCacheControl | None = None
    input_examples: list[dict[str, Any]] | None = None
    eager_input_streaming: bool | None = None  # arguments always stream as they come
    defer_loading: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None


class AutoChoice(Strict, tag_field="type", tag="auto"):
    """Call or answer."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Strict, tag_field="type", tag="any"):
    """Call something."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(Strict, tag_field="type", tag="tool"):
    """Call this one."""

    name: Name
    disable_parallel_tool_use: bool | None = None


class NoChoice(Strict, tag_field="type", tag="none"):
    """Call nothing."""


class ThinkingEnabled(Strict, tag_field="type", tag="enabled"):
    """Think first. The budget is a wish; thoughts count against max_tokens."""

    budget_tokens: Annotated[int, msgspec.Meta(ge=1024, le=MAX_INT)]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(Strict, tag_field="type", tag="adaptive"):
    """Think as the model sees fit."""

    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(Strict, tag_field="type", tag="disabled"):
    """Do not think."""


class JsonFormat(Strict):
    """The answer is JSON of this schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Strict):
    """What the answer is to be like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class AllTurns(Strict, tag_field="type", tag="all"):
    """Every turn."""


class LastTurns(Strict, tag_field="type", tag="thinking_turns"):
    """The last ones."""

    value: Positive


class ClearThinking(Strict, tag_field="type", tag="clear_thinking_20251015"):
    """Forget the thoughts of older turns."""

    keep: Literal["all"] | AllTurns | LastTurns | None = None


class ContextManagement(Strict):
    """What of the conversation to leave out."""

    edits: list[ClearThinking] | None = None


class AnthropicMetadata(Strict):
    """About the request; only rules of routes look at it."""

    user_id: str | None = None


class CountBody(Strict):
    """What makes a prompt."""

    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    model: Name | None = None
    system: str | list[TextBlock] | None = None
    tools: list[CustomTool] | None = None
    tool_choice: AutoChoice | AnyChoice | NamedChoice | NoChoice | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    cache_control: AnthropicCacheControl | None = None
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None


class MessagesBody(CountBody, kw_only=True):
    """A prompt, and how to answer it."""

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    top_k: Whole | None = None
    metadata: AnthropicMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: None = None
    diagnostics: None = None
    inference_geo: None = None
    mcp_servers: None = None
