"""Watches a child engine from outside: is its process running, and does its step loop make progress?

Two signs of life. The echo comes from a native thread of the child (echo.py): only a stopped process misses it, however
long a step, a load or a compilation takes. The answer to a Probe comes between two steps: a step that never returns
misses it. A step may take long, so that alone is only reported. The process is killed if it misses echoes, if it uses
no CPU time while it misses a Probe, or if one step takes longer than the setting `max_step_seconds`.

Time is counted in iterations of this thread, so a parent that was itself stopped or had no CPU reports no hang.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import zmq

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
REPORT_SECONDS = 4.0  # of silence, after which it is reported
KILL_SECONDS = 8.0  # of missing echoes, or of a step without CPU time, after which the process is killed
SLOW_STEP_SECONDS = 8.0  # a step that takes longer is reported
PROBE_SECONDS = 2.0  # of silence, after which a Probe is sent
BUSY_SECONDS = 0.1  # of CPU time within KILL_SECONDS; less counts as idle
CLOCK_TICKS = 100  # a second in /proc, on every Linux


class WatchedProcess(NamedTuple):
    """The watched process, and how to probe and kill it."""

    pid: int
    probe: Callable[[], None]
    kill: Callable[[], None]
    max_step_seconds: float  # 0: no limit


class Watch:
    """A thread that checks one child until `stop`."""

    def __init__(self, child: WatchedProcess, echo: zmq.Socket[bytes]) -> None:
        self._child = child
        self._echo = echo
        self._is_stopped = threading.Event()
        self._has_message = threading.Event()
        self._watches_steps = False
        self._silent_seconds: float | None = None  # seconds without an echo; None: none has come yet
        self._probe_seconds: float | None = None  # seconds since a Probe was sent that is not answered
        self._idle_seconds = 0.0  # seconds without CPU time of the child
        self._cpu_seconds = 0.0
        self._quiet_seconds = 0.0
        self.trouble: str | None = None  # what is wrong now, as the end of the sentence "The engine …"
        self.kill_reason: str | None = None  # why the child was killed, in the same form
        self.was_stopped = False  # probably by a signal
        self._thread = threading.Thread(target=self._run, name="quire-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def watch_steps(self) -> None:
        """Watch the step loop too: the child has loaded its model."""
        self._silent_seconds = self._silent_seconds or 0.0  # it echoes before it loads the model
        self._watches_steps = True

    def record_message(self) -> None:
        """The step loop has sent something. Called by the link's reader, for each batch of messages."""
        self._has_message.set()

    def stop(self) -> None:
        """Stop the thread."""
        self._is_stopped.set()
        self._thread.join()
        self._echo.close(linger=0)

    def _run(self) -> None:
        while self.kill_reason is None and not self._is_stopped.wait(CHECK_SECONDS):
            self.check()

    def check(self) -> None:
        """Check once. Called every CHECK_SECONDS."""
        self._check_echo()
        if self._watches_steps:
            self._check_steps()
        self.trouble = self._find_trouble()
        kill_reason = self._find_kill_reason()
        if kill_reason is not None:
            self.kill_reason, self.was_stopped = kill_reason, (self._silent_seconds or 0.0) >= KILL_SECONDS
            logger.error("killing the engine process %d, which %s", self._child.pid, kill_reason)
            self._child.kill()

    def _check_echo(self) -> None:
        with suppress(zmq.Again):
            while True:
                self._echo.recv(zmq.NOBLOCK)
                self._silent_seconds = -CHECK_SECONDS
        if self._silent_seconds is not None:
            self._silent_seconds += CHECK_SECONDS
        with suppress(zmq.Again):
            self._echo.send(b"", zmq.NOBLOCK)

    def _check_steps(self) -> None:
        if self._has_message.is_set():
            self._has_message.clear()
            self._quiet_seconds, self._probe_seconds = 0.0, None
            return
        self._quiet_seconds += CHECK_SECONDS
        if self._probe_seconds is not None:
            self._probe_seconds += CHECK_SECONDS
            self._check_cpu()
        elif self._quiet_seconds >= PROBE_SECONDS:
            self._probe_seconds = self._idle_seconds = 0.0
            self._cpu_seconds = cpu_seconds(self._child.pid) or 0.0
            self._child.probe()

    def _check_cpu(self) -> None:
        used = cpu_seconds(self._child.pid)
        # The absolute value: it falls when a process that the child started has ended.
        if used is None or abs(used - self._cpu_seconds) >= BUSY_SECONDS:
            self._cpu_seconds, self._idle_seconds = used or 0.0, 0.0
        else:
            self._idle_seconds += CHECK_SECONDS

    def _find_trouble(self) -> str | None:
        if self._silent_seconds is not None and self._silent_seconds >= REPORT_SECONDS:
            return f"has not responded for {self._silent_seconds:.0f} s"
        if self._probe_seconds is not None and self._probe_seconds + PROBE_SECONDS >= SLOW_STEP_SECONDS:
            return f"has been in one step for {self._probe_seconds + PROBE_SECONDS:.0f} s"
        return None

    def _find_kill_reason(self) -> str | None:
        limit = self._child.max_step_seconds
        if self._silent_seconds is not None and self._silent_seconds >= KILL_SECONDS:
            return f"did not respond for {self._silent_seconds:.0f} s"
        if self._probe_seconds is None:
            return None
        if self._idle_seconds >= KILL_SECONDS:
            return f"was in one step for {self._probe_seconds + PROBE_SECONDS:.0f} s and used no CPU time"
        if limit and self._probe_seconds + PROBE_SECONDS >= limit:
            return f"was in one step for {self._probe_seconds + PROBE_SECONDS:.0f} s, and max_step_seconds is {limit:g}"
        return None


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process and its descendants have used. None: unknown, or the process waits for a disk."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        lists = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (OSError, ValueError):
        return None
    if state == "D":
        return None
    own = sum(int(number) for number in numbers[10:14]) / CLOCK_TICKS  # user, system, and those of ended children
    return own + sum(cpu_seconds(int(child)) or 0.0 for listed in lists for child in listed.split())
