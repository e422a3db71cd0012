"""How late this process is: the time between bytes becoming readable and the clock being read for them.

A child process, which does not share our interpreter's lock, writes the time into a socket every few milliseconds; the
event loop reads it as it reads answers. The difference is what every stamp of an answer may be late by.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from quire.bench.heard import clock

EVERY = 0.005  # seconds
CHILD = f"""
import os, struct, sys, time
out = int(sys.argv[1])
try:
    while True:
        time.sleep({EVERY})
        os.write(out, struct.pack("d", time.perf_counter()))
except OSError:
    pass
"""


@dataclass(slots=True)
class OwnDelay:
    """Filled while it is watched."""

    delays: list[float] = field(default_factory=list)  # seconds
    began: float = field(default_factory=clock)
    processor_began: float = field(default_factory=time.process_time)

    def start_over(self) -> None:
        """What was before does not count: a warm-up has ended."""
        self.delays.clear()
        self.began, self.processor_began = clock(), time.process_time()

    @property
    def processor_share(self) -> float:
        """Of one core, that this process took."""
        return (time.process_time() - self.processor_began) / max(1e-9, clock() - self.began)


class _Listener(asyncio.Protocol):
    def __init__(self, into: OwnDelay) -> None:
        self._into = into

    def data_received(self, data: bytes) -> None:
        now = clock()
        whole = len(data) // 8 * 8
        self._into.delays += [now - sent for (sent,) in struct.iter_unpack("d", data[:whole])]


@asynccontextmanager
async def watched() -> AsyncIterator[OwnDelay]:
    """While it is open, delays are measured."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-S", "-E", "-c", CHILD, str(theirs.fileno())]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    delay = OwnDelay()
    transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: _Listener(delay), sock=ours)
    try:
        yield delay
    finally:
        transport.close()
        child.terminate()
        child.wait()
        delay.delays = [each for each in delay.delays if each >= 0]
