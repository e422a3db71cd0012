"""A file mapped read-only. The map lives as long as an array that is a view of it.

Replace a model file by renaming a new one over it; truncating a mapped file kills its readers (SIGBUS).
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .errors import CheckpointError, CheckpointNotFound, CheckpointUnreadable, TruncatedCheckpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """The bytes of a file, twice: `buffer` for parsers (a slice is `bytes`), `data` for tensors (a slice is a view)."""

    path: Path
    buffer: mmap.mmap | bytes
    modified_ns: int
    data: NDArray[np.uint8] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        data = np.frombuffer(self.buffer, np.uint8)
        data.flags.writeable = False
        object.__setattr__(self, "data", data)

    @property
    def num_bytes(self) -> int:
        return len(self.data)

    def release_pages(self) -> None:
        """Release the pages from memory. Pages that are accessed again are read from the file."""
        if isinstance(self.buffer, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED)


def map_file(path: Path) -> MappedFile:
    """Map the file. Raises CheckpointError with the reason if it cannot be mapped."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # checked before open, which would block on a pipe
            raise CheckpointUnreadable(path, "it is not a regular file", "Give a model file or a checkpoint folder.")
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size == 0:
                raise TruncatedCheckpoint(path, "it is empty")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise _open_error(path, error) from error
    return MappedFile(path, buffer, status.st_mtime_ns)


def read_text(path: Path) -> str:
    """Read a small text file of the checkpoint, such as config.json."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _open_error(path, error) from error


def _open_error(path: Path, error: OSError | ValueError) -> CheckpointError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return CheckpointNotFound(path, "there is no such file", "Check the path, or download the model again.")
    reason = (
        error.strerror if isinstance(error, OSError) else str(error)
    )  # ValueError: a NUL in the path, or invalid UTF-8
    return CheckpointUnreadable(path, f"it cannot be read ({reason})", "Check the path and its permissions.")
