"""A server under a guard, from its owner's side: start it or adopt the one that runs, watch it, end it. Without Ray."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.cluster.guard import is_locked, lock_file
from quire.config import child_environment

START_SECONDS = 20.0  # until a guard holds its lock
OWNER_SECONDS = 5.0  # until the lock of an owner that is dying is free
PORT = "{port}"  # in a command: a port that is free on the node
LOG_BYTES = 4000


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A server to run. Equal commands are one server: a running one with the same digest is adopted."""

    arguments: tuple[str, ...]  # of `quire`; "{port}" stands for a free port
    port: int = 0  # 0: any
    host: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=dict)  # beside that of the actor; has the secrets
    drain_seconds: float = 30.0
    orphan_seconds: float = 300.0

    @property
    def digest(self) -> str:
        """Of all that matters to the server."""
        facts = [self.arguments, self.port, self.host, sorted(self.environment.items())]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


class GuardedServer:
    """One server of a node, by its id. Used by one thread of its owner."""

    def __init__(self, folder: Path, id: str, command: ServerCommand) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / f"{id}.json"
        self._command = command
        self._owner: int | None = None
        self.url = ""
        self.is_adopted = False

    def own(self) -> bool:
        """Become its owner. False: another one lives."""
        deadline = time.monotonic() + OWNER_SECONDS  # the guard, and a dying owner, may hold the lock for a moment
        while self._owner is None and time.monotonic() < deadline:
            self._owner = lock_file(self._path.with_suffix(".owner"))
            if self._owner is None:
                time.sleep(0.05)
        return self._owner is not None

    @property
    def is_running(self) -> bool:
        """Does its guard run?"""
        return is_locked(self._path.with_suffix(".alive"))

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the guard and the server, if they run."""
        try:
            found: dict[str, Any] = json.loads(self._path.with_suffix(".alive").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {name: int(found[name]) for name in ("guard", "server")} if self.is_running else {}

    @property
    def exit_code(self) -> int | None:
        """How it ended; None if it runs, or its guard was killed too."""
        try:
            return int(json.loads(self._path.with_suffix(".exit").read_text(encoding="utf-8"))["code"])
        except (OSError, ValueError):
            return None

    def last_line(self) -> str:
        """The end of its log, for messages."""
        try:
            with self._path.with_suffix(".log").open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - LOG_BYTES, 0))
                lines = log.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        said = [line for line in lines if "error" in line.lower()] or lines
        return said[-1].strip() if said else ""

    def ensure(self) -> None:
        """Adopt the server if it runs, or start it. One of another command is ended first."""
        if self.is_running:
            known = self._known()
            if known.get("digest") == self._command.digest:
                self.url, self.is_adopted = str(known["url"]), True
                return
            self.stop()
            self.wait(self._command.drain_seconds + START_SECONDS)
        self._start()

    def stop(self) -> None:
        """Ask it to drain and end."""
        if guard := self.pids.get("guard"):
            with suppress(ProcessLookupError):
                os.kill(guard, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        if server := self.pids.get("server"):
            with suppress(ProcessLookupError):
                os.killpg(server, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended. Did it?"""
        deadline = time.monotonic() + seconds
        while self.is_running:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def forget(self) -> None:
        """Remove the files of a server that has ended; its log stays."""
        for suffix in (".json", ".alive", ".owner", ".exit"):
            self._path.with_suffix(suffix).unlink(missing_ok=True)

    def _start(self) -> None:
        command, known = self._command, self._known()
        port = command.port or find_port(command.host, int(known.get("port", 0)))
        self.url, self.is_adopted = f"http://{command.host}:{port}", False
        spec = {
            "command": [sys.executable, "-m", "quire", *_filled(command.arguments, port)],
            "environment": child_environment(command.environment),
            "drain_seconds": command.drain_seconds,
            "orphan_seconds": command.orphan_seconds,
            "digest": command.digest,
            "url": self.url,
            "port": port,
        }
        self._path.touch(mode=0o600)
        self._path.write_text(json.dumps(spec), encoding="utf-8")
        self._path.with_suffix(".exit").unlink(missing_ok=True)
        self._path.with_suffix(".alive").write_bytes(b"")  # the pids of the last guard may belong to others now
        subprocess.run([sys.executable, "-m", "quire.cluster.guard", str(self._path)], check=True)
        deadline = time.monotonic() + START_SECONDS
        while not self.is_running and self.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _known(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found


def find_port(host: str, preferred: int = 0) -> int:
    """Return a port that is free: the preferred one, if it is."""
    for port in (preferred, 0):
        with suppress(OSError), socket.create_server((host, port)) as found:
            return int(found.getsockname()[1])
    raise OSError(f"no port is free at {host}")


def _filled(arguments: Sequence[str], port: int) -> list[str]:
    return [each.replace(PORT, str(port)) for each in arguments]
