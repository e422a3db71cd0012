"""Why a checkpoint cannot be served. Both are about the file that a user named, so both say what was found in it."""

from __future__ import annotations

from quire.types.errors import QuireError


class UnsupportedModel(QuireError):
    """The checkpoint is sound, and we cannot compute what it means."""

    code = "unsupported_model"
    status = 400


class BadCheckpoint(QuireError):
    """The checkpoint does not hold the tensors that its own configuration promises."""

    code = "bad_checkpoint"
    status = 400
