"""Errors about checkpoints. A message names the file without its folder, and says what to do."""

from __future__ import annotations

from pathlib import Path

from quire.types.errors import QuireError

MAX_PROBLEM = 500


class CheckpointError(QuireError):
    """Base of this package's errors: `problem` names the tensor or key, `advice` is what the user can do."""

    code = "checkpoint_error"

    def __init__(self, path: Path, problem: str, advice: str) -> None:
        if len(problem) > MAX_PROBLEM:  # names in a damaged file can be megabytes long
            problem = f"{problem[:MAX_PROBLEM]}…"
        super().__init__(f"{path.name or path}: {problem}. {advice}")
        self.path = path


class CheckpointNotFound(CheckpointError):
    """The file does not exist, or a folder lacks a required file."""

    code = "checkpoint_not_found"
    status = 404


class CheckpointUnreadable(CheckpointError):
    """The file exists, but the system does not let us read it."""

    code = "checkpoint_unreadable"


class TruncatedCheckpoint(CheckpointError):
    """The file is shorter than its header says."""

    code = "checkpoint_truncated"

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(path, problem, "The file is not complete: download it again.")


class CorruptCheckpoint(CheckpointError):
    """The file contradicts itself or its format."""

    code = "checkpoint_corrupt"

    def __init__(self, path: Path, problem: str, advice: str = "The file is damaged: download it again.") -> None:
        super().__init__(path, problem, advice)


class UnsupportedCheckpoint(CheckpointError):
    """The file may be valid, but it uses something that Quire does not read."""

    code = "checkpoint_unsupported"
    status = 501
