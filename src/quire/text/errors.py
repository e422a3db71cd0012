"""What can be wrong with text: the model's own files, or the messages that a client sent."""

from __future__ import annotations

from quire.types.errors import InvalidRequest, QuireError


class UnsupportedTokenizer(QuireError):
    """The model's tokenizer is of a kind that we cannot reproduce exactly, so we refuse instead of guessing."""

    code = "unsupported_tokenizer"


class BrokenTemplate(QuireError):
    """The model's chat template cannot be compiled, or does what no template needs to do. No message would pass it."""

    code = "broken_chat_template"


class BrokenPreset(QuireError):
    """What a stored model brings beside its weights (parameters, messages) is not what it should be."""

    code = "broken_preset"


class RejectedMessages(InvalidRequest):
    """The chat template refused these messages; another conversation may pass."""

    code = "rejected_messages"

    def __init__(self, public: str) -> None:
        super().__init__(public, field="messages")
