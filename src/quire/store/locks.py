"""Locks between processes. The system gives a lock back when its holder dies, so none is ever left behind."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import writing

POLL_SECONDS = 0.05  # we ask again instead of sleeping in the system, so that Ctrl-C works


@contextmanager
def locked(path: Path, *, shared: bool = False, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock at `path`. `waiting` is called once if another process has it."""
    said = False
    with writing(path.parent):
        file = path.open("a")
    with file:
        while not _try(file.fileno(), shared):
            if not said:
                waiting()
                said = True
            time.sleep(POLL_SECONDS)
        yield


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Hold the lock at `path` alone if it is free; says whether it was."""
    with writing(path.parent):
        file = path.open("a")
    with file:
        yield _try(file.fileno(), shared=False)


def _try(handle: int, shared: bool) -> bool:
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
