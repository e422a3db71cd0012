"""Locks between processes. The system releases a lock when its holder dies, so none is left behind."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import explain_write_errors

POLL_SECONDS = 0.05  # polled, because a blocking flock would delay Ctrl-C


@contextmanager
def locked(path: Path, *, shared: bool = False, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock at `path`. `waiting` is called once if another process has it."""
    has_waited = False
    with explain_write_errors(path.parent):
        file = path.open("a")
    with file:
        while not _try(file.fileno(), shared):
            if not has_waited:
                waiting()
                has_waited = True
            time.sleep(POLL_SECONDS)
        yield


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock at `path` exclusively if it is free; yields whether it was."""
    with explain_write_errors(path.parent):
        file = path.open("a")
    with file:
        yield _try(file.fileno(), shared=False)


def _try(handle: int, shared: bool) -> bool:
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
