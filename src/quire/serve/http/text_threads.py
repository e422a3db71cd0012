"""Threads for work on text, which keep the event loop free: JSON decoding, templates, tokenizing.

A large body has a thread of its own: requests of ordinary size never wait behind one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
LONG_TEXT = 4096  # bytes of a body from which on it is tokenized in a thread
LARGE_BODY = 1 << 17  # bytes from which on it is decoded in one
HUGE_BODY = 1 << 20  # bytes from which on all of that is done in the thread for large bodies
NUM_THREADS = 2


class TextThreads:
    """Two threads for ordinary bodies, one for large bodies. Threads start when they are needed."""

    def __init__(self) -> None:
        self._ordinary = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire-text")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="quire-large-text")

    async def run(self, work: Callable[[], T], num_bytes: int, least: int) -> T:
        """Do this work on a body of so many bytes: here if it has fewer than `least`, else in a thread."""
        if num_bytes < least:
            return work()
        pool = self._large if num_bytes >= HUGE_BODY else self._ordinary
        return await asyncio.get_running_loop().run_in_executor(pool, work)
