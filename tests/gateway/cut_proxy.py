"""A TCP proxy in front of a server, whose connections a test can cut: what a client sees when a server is killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class CutProxy:
    """Passes bytes on until it is told to stop. `cut_after`: bytes of a stream after which all connections are cut."""

    def __init__(self, target: str) -> None:
        address = urlsplit(target)
        self._target = address.hostname, address.port
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self.is_dead = False  # accepts connections, and closes them at once
        self.cut_after: int | None = None
        self.num_cuts = 0
        self.url = ""

    def kill(self) -> None:
        """Cut all connections, and refuse others."""
        self.is_dead = True
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        self.num_cuts += 1
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_dead:
            writer.transport.abort()
            return
        with suppress(OSError):
            there, there_writer = await asyncio.open_connection(*self._target)
            self._writers |= {writer, there_writer}
            await asyncio.gather(self._pump(reader, there_writer), self._pump(there, writer, is_answer=True))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool = False) -> None:
        num_bytes, is_stream = 0, False
        try:
            while data := await reader.read(1 << 16):
                is_stream = is_stream or (is_answer and b"x-quire-frames" in data)
                if is_stream and self.cut_after is not None:
                    num_bytes += len(data)
                    if num_bytes > self.cut_after and not self.is_dead:
                        self.is_dead = True  # before another stream reaches its place too
                        writer.write(data[: max(1, len(data) // 2)])
                        await writer.drain()
                        self._cut()
                        return
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _serve(self, started: threading.Event) -> None:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await server.serve_forever()

    def run(self, started: threading.Event) -> None:
        """In a thread: serve until `stop`."""
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._serve(started))
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)

    def stop(self) -> None:
        """End."""
        self._loop.call_soon_threadsafe(lambda: (self._cut(), self._task.cancel()))


@contextmanager
def cut_proxy(target: str) -> Iterator[CutProxy]:
    """Run a proxy until the block ends."""
    proxy, started = CutProxy(target), threading.Event()
    thread = threading.Thread(target=proxy.run, args=(started,))
    thread.start()
    assert started.wait(10)
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()
