"""The content of a message: a text, or a list of parts that must all be text."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct

from quire.serve.dialects.openai.terms import CacheBreakpoint, OpenAICacheControl, keep_seconds
from quire.serve.dialects.strict_json import quoted
from quire.types.errors import InvalidRequest

TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")


class ContentPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """Text, in the form of chat completions or of responses.

    The last fields are those of images, sounds and files: declared, so that the refusal can name the part's type.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    cache_control: OpenAICacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None
    annotations: list[Any] | None = None  # these three come back from earlier answers
    logprobs: list[Any] | None = None
    parsed: Any = None
    image_url: Any = None
    video_url: Any = None
    audio_url: Any = None
    input_audio: Any = None
    file: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None
    detail: Any = None


Content = str | list[ContentPart]


class MessageContent(NamedTuple):
    """The text of a message, and how long to keep it."""

    text: str
    keep: float | None = None  # seconds to keep the prompt up to the end of this message


def read_content(content: Content | None, field: str) -> MessageContent:
    """Join the texts of all parts, one on each line. `field` is the path of the content in the body."""
    if content is None:
        return MessageContent("")
    if isinstance(content, str):
        return MessageContent(content)
    texts = [_text(part, f"{field}[{place}]") for place, part in enumerate(content)]
    marks = [keep_seconds(part.cache_control, part.prompt_cache_breakpoint) for part in content]
    return MessageContent("\n".join(texts), max((mark for mark in marks if mark is not None), default=None))


def _text(part: ContentPart, field: str) -> str:
    name = "refusal" if part.type == "refusal" else "text"
    if name == "text" and part.type not in TEXTS:
        public = f"{field}.type is {quoted(part.type)}; only text is supported, for example of the type 'text'."
        raise InvalidRequest(public, field=f"{field}.type")
    text: str | None = getattr(part, name)
    if text is None:
        raise InvalidRequest(f"Missing required parameter: {field}.{name}", field=f"{field}.{name}")
    return text
