"""The event loop that the load generator runs on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


def run_async(work: Coroutine[Any, Any, Value]) -> Value:
    """Run it on uvloop if that is installed. SIGTERM acts as Ctrl-C does, so that servers it started are stopped."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(_cancel_on_sigterm(work))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _cancel_on_sigterm(work: Coroutine[Any, Any, Value]) -> Value:
    task = asyncio.ensure_future(work)

    def cancel() -> None:
        if not task.cancelling():  # a second signal does not interrupt the cleanup
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel)
    return await task
