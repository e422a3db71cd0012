"""Measure the load generator's own delay: the time from bytes becoming readable to the clock being read for them.

A child process, which does not share this interpreter's lock, writes the time into a socket every few milliseconds; the
event loop reads it as it reads answers. The difference is how late the time of an event of an answer may be.
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

from quire.bench.machine.clock import clock

SAMPLE_SECONDS = 0.005
CHILD = f"""
import os, struct, sys, time
out = int(sys.argv[1])
try:
    while True:
        time.sleep({SAMPLE_SECONDS})
        os.write(out, struct.pack("d", time.perf_counter()))
except OSError:
    pass
"""


@dataclass(slots=True)
class GeneratorDelay:
    """Delays and CPU time since the last `restart`."""

    delays: list[float] = field(default_factory=list)  # seconds
    began: float = field(default_factory=clock)
    processor_began: float = field(default_factory=time.process_time)

    def restart(self) -> None:
        """Discard what was measured so far: the warm-up has ended."""
        self.delays.clear()
        self.began, self.processor_began = clock(), time.process_time()

    @property
    def processor_share(self) -> float:
        """Share of one core that this process used."""
        return (time.process_time() - self.processor_began) / max(1e-9, clock() - self.began)


class _Receiver(asyncio.Protocol):
    def __init__(self, delay: GeneratorDelay) -> None:
        self._delay = delay

    def data_received(self, data: bytes) -> None:
        now = clock()
        complete = len(data) // 8 * 8
        self._delay.delays += [now - sent for (sent,) in struct.iter_unpack("d", data[:complete])]


@asynccontextmanager
async def measure_generator_delay() -> AsyncIterator[GeneratorDelay]:
    """Measure delays while the context is open."""
    own_end, child_end = socket.socketpair()
    command = [sys.executable, "-S", "-E", "-c", CHILD, str(child_end.fileno())]
    child = subprocess.Popen(command, pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL)
    child_end.close()
    delay = GeneratorDelay()
    transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: _Receiver(delay), sock=own_end)
    try:
        yield delay
    finally:
        transport.close()
        child.terminate()
        child.wait()
        delay.delays = [each for each in delay.delays if each >= 0]
