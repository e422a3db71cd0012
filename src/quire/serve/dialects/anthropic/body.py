"""The bodies of /v1/messages and /v1/messages/count_tokens: their fields, as Anthropic's API has them.

A field that is not declared is refused by its name. A field of type `None` exists in Anthropic's API and is not
supported: only null is accepted.
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
    """Keep the prompt up to here in the cache."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def seconds(self) -> float:
        """How long to keep it."""
        return 3600.0 if self.ttl == "1h" else 300.0


class TextBlock(Strict, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: AnthropicCacheControl | None = None
    citations: list[Any] | None = None  # of an earlier answer; not shown to the model


class Caller(Strict):
    """The maker of a call: the model itself."""

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
    """The result of a call."""

    tool_use_id: Name
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: AnthropicCacheControl | None = None
    toolset_name: None = None


class ThinkingBlock(Strict, tag_field="type", tag="thinking"):
    """A thought of the assistant. Thoughts are not signed here, so the signature is ignored."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Strict, tag_field="type", tag="redacted_thinking"):
    """An encrypted thought of another server's model."""

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
    """The model decides whether to call."""

    disable_parallel_tool_use: bool | None = None


class AnyChoice(Strict, tag_field="type", tag="any"):
    """The model must call a tool."""

    disable_parallel_tool_use: bool | None = None


class NamedChoice(Strict, tag_field="type", tag="tool"):
    """The model must call this tool."""

    name: Name
    disable_parallel_tool_use: bool | None = None


class NoChoice(Strict, tag_field="type", tag="none"):
    """The model must not call."""


class ThinkingEnabled(Strict, tag_field="type", tag="enabled"):
    """Think first. The budget is not enforced; thoughts count towards max_tokens."""

    budget_tokens: Annotated[int, msgspec.Meta(ge=1024, le=MAX_INT)]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(Strict, tag_field="type", tag="adaptive"):
    """The model decides how much to think."""

    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(Strict, tag_field="type", tag="disabled"):
    """Do not think."""


class JsonFormat(Strict):
    """The answer is JSON of this schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Strict):
    """The effort and format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class AllTurns(Strict, tag_field="type", tag="all"):
    """Every turn."""


class LastTurns(Strict, tag_field="type", tag="thinking_turns"):
    """The last ones."""

    value: Positive


class ClearThinking(Strict, tag_field="type", tag="clear_thinking_20251015"):
    """Remove the thoughts of older turns."""

    keep: Literal["all"] | AllTurns | LastTurns | None = None


class ContextManagement(Strict):
    """Parts of the conversation to leave out."""

    edits: list[ClearThinking] | None = None


class AnthropicMetadata(Strict):
    """About the request; only rules of routes look at it."""

    user_id: str | None = None


class CountBody(Strict):
    """The fields of a prompt."""

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
    """A prompt, and the parameters of its answer."""

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
    speculate: bool | str | None = None  # ours: auto or off
