"""Errors of text: in the model's own files, or in the messages that a client sent."""

from __future__ import annotations

from quire.types.errors import InvalidRequest, QuireError


class UnsupportedTokenizer(QuireError):
    """The model's tokenizer is of a kind that we cannot reproduce exactly, so we refuse instead of guessing."""

    code = "unsupported_tokenizer"


class BrokenTemplate(QuireError):
    """The model's chat template cannot be compiled, or tries to leave its sandbox. No conversation can be rendered."""

    code = "broken_chat_template"


class BrokenPreset(QuireError):
    """The files beside a stored model's weights (parameters, messages) are not valid."""

    code = "broken_preset"


class RejectedMessages(InvalidRequest):
    """The chat template refused these messages; another conversation may pass."""

    code = "rejected_messages"

    def __init__(self, public: str) -> None:
        super().__init__(public, field="messages")
