"""Errors about models that cannot be served. Both say what was found in the user's file."""

from __future__ import annotations

from quire.types.errors import QuireError


class UnsupportedModel(QuireError):
    """The checkpoint is valid, but this model is not supported."""

    code = "unsupported_model"
    status = 400


class BadCheckpoint(QuireError):
    """The checkpoint's tensors do not match its configuration."""

    code = "bad_checkpoint"
    status = 400
