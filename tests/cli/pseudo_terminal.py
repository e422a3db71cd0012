"""`quire` on a pseudo-terminal."""

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

TIMEOUT = 120  # seconds; on an idle machine every wait takes less than one

# The child takes the terminal as its controlling terminal, so that Ctrl-C raises SIGINT, then executes the command.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A running command, with what it printed."""

    def __init__(self, handle: int, child: subprocess.Popen[bytes]) -> None:
        self.handle = handle
        self.child = child
        self.screen = ""

    def wait_for(self, text: str) -> str:
        """Read until `text` appears; return the output up to its end."""
        deadline = time.monotonic() + TIMEOUT
        while text not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.screen!r}"
            if select.select([self.handle], [], [], 0.1)[0]:
                self.screen += self._read()
        seen, _, self.screen = self.screen.partition(text)
        return seen + text

    def type(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def say(self, line: str) -> str:
        """Type a line; return the output up to the next prompt."""
        self.type(line + "\r")
        return self.wait_for(">>> ")

    def stop_long_answer(self) -> None:
        """Request a long answer, stop it with Ctrl-C, and wait for the next prompt."""
        self.wait_for(">>> ")
        self.type("Write a long story about a ship.\r")
        self.wait_for("Once upon a time")
        self.type("\x03")
        assert "(stopped)" in self.wait_for(">>> ")

    def wait_for_exit(self) -> int:
        """Wait until the command ends; return its exit code."""
        deadline = time.monotonic() + TIMEOUT
        while self.child.poll() is None and time.monotonic() < deadline:
            if select.select([self.handle], [], [], 0.05)[0]:
                self.screen += self._read()
        return self.child.wait(timeout=1)

    def _read(self) -> str:
        try:
            return os.read(self.handle, 65536).decode(errors="replace").replace("\r\n", "\n")
        except OSError:  # Linux raises EIO when the other side is closed
            assert self.child.poll() is not None or self.child.wait(timeout=5) is not None
            return ""


class EmulatedTerminal(Terminal):
    """A terminal that interprets control sequences: `display` is what a user sees."""

    def __init__(self, handle: int, child: subprocess.Popen[bytes], columns: int, rows: int) -> None:
        super().__init__(handle, child)
        self._emulated = pyte.Screen(columns, rows)
        self._emulated.write_process_input = self.type  # replies, such as the cursor position
        self._stream = pyte.ByteStream(self._emulated)

    @property
    def display(self) -> str:
        return "\n".join(line.rstrip() for line in self._emulated.display).rstrip("\n")

    def wait_for_display(self, expected: Callable[[str], bool] | str) -> str:
        """Read until the display contains the text or satisfies the predicate; return it."""
        is_reached = expected if callable(expected) else lambda display: expected in display
        deadline = time.monotonic() + TIMEOUT
        while not is_reached(self.display):
            assert time.monotonic() < deadline, f"not reached:\n{self.display}"
            if select.select([self.handle], [], [], 0.1)[0]:
                self._stream.feed(os.read(self.handle, 65536))
        return self.display


def at_prompt(display: str) -> bool:
    """Is the chat waiting for a message?"""
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
    handle, child_end = pty.openpty()
    termios.tcsetwinsize(child_end, size)
    child = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *command],
        env=environment,
        stdin=child_end,
        stdout=child_end,
        stderr=child_end,
        start_new_session=True,
    )
    os.close(child_end)
    try:
        yield Terminal(handle, child)
    finally:
        child.kill()
        child.wait()
        os.close(handle)
