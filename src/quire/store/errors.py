"""What can go wrong between a model's name and its file. Every sentence ends with what the user can do."""

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
        super().__init__(f"{text!r} is not a model's name: {problem}", field="model")


class ModelNotFound(StoreError):
    """No such model in the store, or no source that has it."""

    code = "model_not_found"
    status = 404


class Unreachable(StoreError):
    """A source does not answer, or the connection broke more often than we retry. What came is kept."""

    code = "source_unreachable"
    status = 502


class NotAsked(Unreachable):
    """A setting forbids to ask this source. The next one may be asked instead."""


class WrongChecksum(StoreError):
    """The bytes are not those that the source or our own list promises."""

    code = "wrong_checksum"
    status = 502


class DamagedModel(StoreError):
    """A stored file is missing or has another size than its manifest says."""

    code = "model_damaged"


class DiskFull(StoreError):
    """There is no room for a file. Nothing half-written is visible under a model's name."""

    code = "disk_full"
    status = 507


class Unwritable(StoreError):
    """The store's folder cannot be written for another reason than a full disk."""

    code = "store_unwritable"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn the system's complaint about a write below `folder` into one that a user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(
                f"The disk is full: {folder} cannot take the file. Free some space and run the same command again, "
                "or move the store to another disk with QUIRE_HOME."
            ) from error
        if error.errno == TOO_LARGE:
            raise DiskFull(
                f"The system allows no file of this size in {folder}: raise the limit (ulimit -f), "
                "or move the store to another disk with QUIRE_HOME."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Unwritable(
                f"{folder} cannot be written ({error.strerror}): change its permissions, "
                "or choose another folder with QUIRE_HOME."
            ) from error
        raise
