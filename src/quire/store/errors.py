"""Errors of the store. Every message ends with what the user can do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.types.errors import InvalidRequest, QuireError

FULL = {errno.ENOSPC, errno.EDQUOT}
TOO_LARGE = errno.EFBIG


class StoreError(QuireError):
    """The root of this package's errors."""

    code = "store_error"


class BadName(InvalidRequest):
    """The name of a model does not follow the grammar in names.py."""

    code = "bad_model_name"

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(f"{text!r} is not a valid model name: {problem}", field="model")


class ModelNotFound(StoreError):
    """The model is not in the store, and no source has it."""

    code = "model_not_found"
    status = 404


class Unreachable(StoreError):
    """A source does not respond, or the connection broke too often. What was fetched is kept."""

    code = "source_unreachable"
    status = 502


class SourceDisabled(Unreachable):
    """A setting forbids requests to this source. The next source is tried."""


class WrongChecksum(StoreError):
    """The content does not have the checksum that the source or our own list states."""

    code = "wrong_checksum"
    status = 502


class DamagedModel(StoreError):
    """A stored file is missing, or its size is not the one in the manifest."""

    code = "model_damaged"


class DiskFull(StoreError):
    """There is no space for a file. No partly written model becomes visible."""

    code = "disk_full"
    status = 507


class Unwritable(StoreError):
    """The store's folder cannot be written, for a reason other than a full disk."""

    code = "store_unwritable"


@contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Turn the system's error about a write below `folder` into one that a user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(
                f"The disk of {folder} is full: free some space and run the same command again, or move the store to "
                "another disk with QUIRE_HOME."
            ) from error
        if error.errno == TOO_LARGE:
            raise DiskFull(
                f"The file is larger than the system allows in {folder}: raise the limit (ulimit -f), or move the "
                "store to another disk with QUIRE_HOME."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Unwritable(
                f"{folder} cannot be written ({error.strerror}): change its permissions, "
                "or choose another folder with QUIRE_HOME."
            ) from error
        raise
