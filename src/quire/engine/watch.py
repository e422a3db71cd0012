"""Watch a child engine from outside: is its process running, and does its step loop go on?

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

LOOK_SECONDS = 0.5
REPORT_SECONDS = 4.0  # of silence, after which it is reported
KILL_SECONDS = 8.0  # of missing echoes, or of a step without CPU time, after which the process is killed
SLOW_STEP_SECONDS = 8.0  # a step that takes longer is reported
PROBE_SECONDS = 2.0  # of silence, after which the step loop is asked for a sign of life
BUSY_SECONDS = 0.1  # of CPU time within KILL_SECONDS: less is no work
CLOCK_TICKS = 100  # of /proc: a second, on every Linux


class Child(NamedTuple):
    """What is watched: a process, and how its step loop is asked for a sign of life."""

    pid: int
    probe: Callable[[], None]
    kill: Callable[[], None]
    max_step_seconds: float  # 0: no limit


class Watch:
    """A thread that looks at one child until `stop`."""

    def __init__(self, child: Child, echo: zmq.Socket[bytes]) -> None:
        self._child = child
        self._echo = echo
        self._is_over = threading.Event()
        self._has_spoken = threading.Event()
        self._is_serving = False
        self._silence: float | None = None  # seconds without an echo; None: there has been none yet
        self._waited: float | None = None  # seconds that a Probe has waited for its answer
        self._quiet = 0.0  # seconds since the child has used CPU time
        self._cpu_seconds = 0.0
        self._since_news = 0.0
        self.trouble: str | None = None  # what is wrong now, for people
        self.verdict: str | None = None  # why the child was killed
        self.was_stopped = False  # by a signal, as far as can be told
        self._thread = threading.Thread(target=self._run, name="quire-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def serve(self) -> None:
        """The child has loaded its model: from now on its step loop is watched too."""
        self._silence = self._silence or 0.0  # it echoes before it loads
        self._is_serving = True

    def heard(self) -> None:
        """The step loop has said something. Called by the link's reader, for each batch of messages."""
        self._has_spoken.set()

    def stop(self) -> None:
        """Look no more."""
        self._is_over.set()
        self._thread.join()
        self._echo.close(linger=0)

    def _run(self) -> None:
        while self.verdict is None and not self._is_over.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Look once; LOOK_SECONDS have passed since the last time."""
        self._look_at_echo()
        if self._is_serving:
            self._look_at_steps()
        self.trouble = self._describe()
        verdict = self._judge()
        if verdict is not None:
            self.verdict, self.was_stopped = verdict, (self._silence or 0.0) >= KILL_SECONDS
            logger.error("the engine process %d %s, and is killed", self._child.pid, verdict)
            self._child.kill()

    def _look_at_echo(self) -> None:
        with suppress(zmq.Again):
            while True:
                self._echo.recv(zmq.NOBLOCK)
                self._silence = -LOOK_SECONDS
        if self._silence is not None:
            self._silence += LOOK_SECONDS
        with suppress(zmq.Again):
            self._echo.send(b"", zmq.NOBLOCK)

    def _look_at_steps(self) -> None:
        if self._has_spoken.is_set():
            self._has_spoken.clear()
            self._since_news, self._waited = 0.0, None
            return
        self._since_news += LOOK_SECONDS
        if self._waited is not None:
            self._waited += LOOK_SECONDS
            self._look_at_cpu()
        elif self._since_news >= PROBE_SECONDS:
            self._waited = self._quiet = 0.0
            self._cpu_seconds = cpu_seconds(self._child.pid) or 0.0
            self._child.probe()

    def _look_at_cpu(self) -> None:
        used = cpu_seconds(self._child.pid)
        if used is None or abs(used - self._cpu_seconds) >= BUSY_SECONDS:  # less: a process that it started has ended
            self._cpu_seconds, self._quiet = used or 0.0, 0.0
        else:
            self._quiet += LOOK_SECONDS

    def _describe(self) -> str | None:
        if self._silence is not None and self._silence >= REPORT_SECONDS:
            return f"has not responded for {self._silence:.0f} s"
        if self._waited is not None and self._waited + PROBE_SECONDS >= SLOW_STEP_SECONDS:
            return f"has been in one step for {self._waited + PROBE_SECONDS:.0f} s"
        return None

    def _judge(self) -> str | None:
        limit = self._child.max_step_seconds
        if self._silence is not None and self._silence >= KILL_SECONDS:
            return f"did not respond for {self._silence:.0f} s"
        if self._waited is None:
            return None
        if self._quiet >= KILL_SECONDS:
            return f"was in one step for {self._waited + PROBE_SECONDS:.0f} s and used no CPU time"
        if limit and self._waited + PROBE_SECONDS >= limit:
            return f"was in one step for {self._waited + PROBE_SECONDS:.0f} s, and max_step_seconds is {limit:g}"
        return None


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time that a process and those it started have used. None: unknown, or it waits for a disk."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        lists = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (OSError, ValueError):
        return None
    if state == "D":
        return None
    own = sum(int(number) for number in numbers[10:14]) / CLOCK_TICKS  # user, system, and those of ended children
    return own + sum(cpu_seconds(int(child)) or 0.0 for listed in lists for child in listed.split())
