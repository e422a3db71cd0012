"""For what other processes and threads do in their own time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], object], seconds: float = 60.0) -> None:
    """Fails if it does not become so; the time is for machines that do other things too."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
