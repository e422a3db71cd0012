"""Runs one server apart from Ray, so that its streams outlive the actor, the raylet and the head that started it.

    actor ── starts ──> guard (a session of its own) ── starts ──> quire serve | quire gateway

Files of a server, in the run folder of its node:
    ID.json    what to run; the guard adds nothing to it
    ID.alive   locked by the guard as long as it runs; has its pid and the server's
    ID.owner   locked by the actor that looks after the server
    ID.log     the output of the server
    ID.exit    how the server ended

Locks end with the process that holds them, whatever kills it: no pid is used that may belong to another process. If no
actor holds ID.owner for `orphan_seconds`, the guard drains the server. If the guard is killed, so is the server.
Imports the standard library alone: a guard needs about 10 MB.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.2
KILL_MARGIN = 10.0  # seconds that a server may take to end beyond its own time to drain
SET_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG


def lock_file(path: Path) -> int | None:
    """Lock a file for this process; return its descriptor, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Does a process hold this lock?"""
    if not path.exists():
        return False
    descriptor = lock_file(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def main(arguments: list[str]) -> None:
    """Run the server of a file, in the background: the caller's process ends at once."""
    path = Path(arguments[0])
    if os.fork():
        os._exit(0)
    os.setsid()
    alive = _lock_alive(path.with_suffix(".alive"))
    if alive is None:
        return  # another guard has it
    path.with_suffix(".exit").unlink(missing_ok=True)
    spec = json.loads(path.read_text(encoding="utf-8"))
    with path.with_suffix(".log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        code = _run(spec, path, alive)
    path.with_suffix(".exit").write_text(json.dumps({"code": code, "at": time.time()}), encoding="utf-8")


def _lock_alive(path: Path) -> int | None:
    """The lock of the guard. One who only asks whether it is held has it for a moment."""
    for _ in range(20):
        descriptor = lock_file(path)
        if descriptor is not None:
            return descriptor
        time.sleep(0.05)
    return None


def _run(spec: dict[str, Any], path: Path, alive: int) -> int:
    server = subprocess.Popen(
        spec["command"],
        env=spec["environment"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_guard,  # noqa: PLW1509  # the guard has one thread
    )
    os.ftruncate(alive, 0)
    os.pwrite(alive, json.dumps({"guard": os.getpid(), "server": server.pid, "at": time.time()}).encode(), 0)
    stop = _Stop(server, float(spec["drain_seconds"]))
    signal.signal(signal.SIGTERM, lambda *_: stop.ask())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    owned_at = time.monotonic()
    while server.poll() is None:
        time.sleep(POLL_SECONDS)
        now = time.monotonic()
        if is_locked(path.with_suffix(".owner")):
            owned_at = now
        elif now - owned_at > float(spec["orphan_seconds"]):
            stop.ask()
        stop.enforce(now)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)  # what it has left behind
    return int(server.returncode)


class _Stop:
    """Ends a server: SIGTERM, and SIGKILL if it takes longer than it may."""

    def __init__(self, server: subprocess.Popen[bytes], drain_seconds: float) -> None:
        self._server = server
        self._drain_seconds = drain_seconds
        self._asked_at: float | None = None

    def ask(self) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._server.send_signal(signal.SIGTERM)

    def enforce(self, now: float) -> None:
        if self._asked_at is not None and now - self._asked_at > self._drain_seconds + KILL_MARGIN:
            with suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)


def _die_with_guard() -> None:
    """Kill this process when its parent dies. Only Linux can; elsewhere the server runs until its actor ends it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
