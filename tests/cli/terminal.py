"""A pseudo-terminal with `quire` on it, to type into and read from."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyte

SECONDS = 120  # a machine may be busy; what is awaited comes in less than one

# The child makes the terminal its own, so that Ctrl-C in it is a signal, and then becomes the command.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """What a user has before them."""

    def __init__(self, handle: int, child: subprocess.Popen[bytes]) -> None:
        self.handle = handle
        self.child = child
        self.screen = ""

    def wait_for(self, text: str) -> str:
        """Read until `text` is there; all up to its end."""
        deadline = time.monotonic() + SECONDS
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} did not come, but {self.screen!r}"
            if select.select([self.handle], [], [], 0.1)[0]:
                self.screen += self._read()
        seen, _, self.screen = self.screen.partition(text)
        return seen + text

    def type(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def say(self, line: str) -> str:
        """Send a line and read all up to the next prompt."""
        self.type(line + "\r")
        return self.wait_for(">>> ")

    def leave(self) -> int:
        """Its exit code."""
        deadline = time.monotonic() + SECONDS
        while self.child.poll() is None and time.monotonic() < deadline:
            if select.select([self.handle], [], [], 0.05)[0]:
                self.screen += self._read()
        return self.child.wait(timeout=1)

    def _read(self) -> str:
        try:
            return os.read(self.handle, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:  # how Linux says that the other side is closed
            assert self.child.poll() is not None or self.child.wait(timeout=5) is not None
            return ""


class EmulatedTerminal(Terminal):
    """One that understands what a real one does: `display` is what a user sees."""

    def __init__(self, handle: int, child: subprocess.Popen[bytes], columns: int, rows: int) -> None:
        super().__init__(handle, child)
        self._emulated = pyte.Screen(columns, rows)
        self._emulated.write_process_input = self.type  # answers, such as where the cursor is
        self._stream = pyte.ByteStream(self._emulated)

    @property
    def display(self) -> str:
        return "\n".join(line.rstrip() for line in self._emulated.display).rstrip("\n")

    def see(self, wanted: Callable[[str], bool] | str) -> str:
        """Read until the display is as wanted."""
        is_there = wanted if callable(wanted) else lambda display: wanted in display
        deadline = time.monotonic() + SECONDS
        while not is_there(self.display):
            assert time.monotonic() < deadline, f"it did not come, but\n{self.display}"
            if select.select([self.handle], [], [], 0.1)[0]:
                self._stream.feed(os.read(self.handle, 65536))
        return self.display


def at_prompt(display: str) -> bool:
    """Does the chat wait for a message?"""
    return display.endswith(">>>")


@contextmanager
def emulated_terminal(
    command: list[str], environment: Mapping[str, str], columns: int = 60, rows: int = 60
) -> Iterator[EmulatedTerminal]:
    with on_terminal(command, {**environment, "TERM": "xterm"}, (rows, columns)) as plain:
        yield EmulatedTerminal(plain.handle, plain.child, columns, rows)


@contextmanager
def on_terminal(
    command: list[str], environment: Mapping[str, str], size: tuple[int, int] = (0, 0)
) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    child = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *command],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours, child)
    finally:
        child.kill()
        child.wait()
        os.close(ours)
