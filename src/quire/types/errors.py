"""Errors that users see: a stable code, an HTTP status, and a message.

`public` is safe to show to any client; details for the operator go to the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class QuireError(Exception):
    """Base of all errors. A subclass sets `code` and `status`; an instance has the message."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500

    def __init__(self, public: str) -> None:
        super().__init__(public)
        self.public = public


class InvalidRequest(QuireError):
    """The request is invalid: a retry fails until it is changed."""

    code = "invalid_request"
    status = 400

    def __init__(self, public: str, field: str | None = None) -> None:
        super().__init__(public)
        self.field = field


class ContextTooLong(InvalidRequest):
    """The prompt leaves no room for a single new token. Prompts are never truncated."""

    code = "context_too_long"

    def __init__(self, num_prompt: int, max_context: int, *, of_request: bool = False, is_whole: bool = True) -> None:
        cure = "raise num_ctx" if of_request else "serve the model with a larger context"
        count = f"{num_prompt}" if is_whole else f"more than {num_prompt}"  # the rest was not counted
        super().__init__(
            f"The prompt has {count} tokens and the context, which must also hold the answer, {max_context}: "
            f"send at most {max_context - 1} tokens, or {cure}.",
            field="prompt",
        )
        self.num_prompt = num_prompt
        self.max_context = max_context


class TextTooLong(InvalidRequest):
    """A text that is to become one vector is longer than the model reads."""

    code = "text_too_long"

    def __init__(self, num_tokens: int, max_tokens: int, field: str = "input") -> None:
        super().__init__(
            f"The text has {num_tokens} tokens, and the model reads at most {max_tokens}: send a shorter text, or have "
            "it truncated.",
            field=field,
        )


class WrongKind(InvalidRequest):
    """The model cannot do what is asked."""

    code = "unsupported_by_model"

    def __init__(self, asked: str, kinds: Iterable[str], cure: str = "") -> None:
        can = " and ".join(kinds)
        super().__init__(f"This model cannot {asked}: it can {can}.{cure and ' '}{cure}", field="model")


class CacheTooSmall(InvalidRequest):
    """The request does not fit into the KV cache even alone."""

    code = "cache_too_small"

    def __init__(self, num_tokens: int, num_slots: int) -> None:
        super().__init__(
            f"The request needs KV for {num_tokens} tokens and the whole cache holds {num_slots}: "
            "send a shorter prompt, or give the engine more cache memory (num_blocks, memory_share).",
            field="prompt",
        )
        self.num_tokens = num_tokens
        self.num_slots = num_slots


class DuplicateRequest(InvalidRequest):
    """A live request already has this id."""

    code = "duplicate_request"
    status = 409

    def __init__(self, request_id: str) -> None:
        super().__init__(f"A request with the id {request_id!r} is still running: use another id.", field="id")


class Overloaded(QuireError):
    """The queue is full, or the expected wait exceeds the limit."""

    code = "overloaded"
    status = 503

    def __init__(self, public: str, retry_after: float) -> None:
        super().__init__(f"{public} Try again in {retry_after:.1f} s.")
        self.retry_after = retry_after


class DeadlineExceeded(QuireError):
    """The request's deadline passed before it finished."""

    code = "deadline_exceeded"
    status = 504

    def __init__(self, num_output: int) -> None:
        super().__init__(f"The deadline passed after {num_output} output tokens.")
        self.num_output = num_output


class StepFailed(QuireError):
    """The device could not compute this request's part of a step."""

    code = "step_failed"


class OutOfDeviceMemory(StepFailed):
    """A step did not fit into the device's memory. Its request with the most tokens in the step fails with this."""

    code = "out_of_device_memory"
    status = 503
    retry_after = 5.0

    def __init__(self) -> None:
        super().__init__(
            "The device had no memory left to compute this request beside the others. Send it again later, or with a "
            "shorter prompt. The operator can free memory for steps with a lower memory_share or max_step_tokens."
        )


class SourceTooLong(InvalidRequest):
    """The input of the model's encoder is longer than that, or its cache, can hold."""

    code = "source_too_long"

    def __init__(self, num_tokens: int, most: int) -> None:
        super().__init__(
            f"The input of the encoder has {num_tokens} tokens, {most} is the limit: send less at once.", field="prompt"
        )
        self.num_tokens = num_tokens
        self.most = most


class AudioUnavailable(QuireError):
    """The package that decodes sound files is not installed."""

    code = "audio_unavailable"
    status = 501

    def __init__(self) -> None:
        super().__init__(
            "Sound files cannot be decoded: the package soundfile is not installed. Run: pip install soundfile"
        )
