"""Threads for text work that would block the event loop: JSON decoding, templates, tokenization.

Large bodies have a separate thread, so that ordinary requests never wait behind one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
LONG_TEXT = 4096  # bytes: larger bodies are tokenized in a thread
LARGE_BODY = 1 << 17  # bytes: larger bodies are decoded in a thread
HUGE_BODY = 1 << 20  # bytes: larger bodies use the thread for large bodies
NUM_THREADS = 2


class TextThreads:
    """Two threads for ordinary bodies and one for large ones, started when needed."""

    def __init__(self) -> None:
        self._ordinary = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="quire-text")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="quire-large-text")

    async def run(self, work: Callable[[], T], num_bytes: int, least: int) -> T:
        """Run `work` on a body of this size: here if it is smaller than `least` bytes, otherwise in a thread."""
        if num_bytes < least:
            return work()
        pool = self._large if num_bytes >= HUGE_BODY else self._ordinary
        return await asyncio.get_running_loop().run_in_executor(pool, work)
