"""Keep typed keys out of printed text.

While an answer streams, the terminal does not echo. Keys typed meanwhile stay in its input queue for the next reader:
the chat's next prompt, or the user's shell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import termios
except ImportError:  # Windows: the console does not echo while nothing reads it
    termios = None  # type: ignore[assignment]

LOCAL_FLAGS = 3  # index of the local flags in a terminal's attributes


@contextmanager
def echo_disabled() -> Iterator[None]:
    """Turn off the terminal's echo and line editing. Ctrl-C still raises a signal."""
    if termios is None or not _owns_terminal():
        yield
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    quiet = list(before)
    # Without ICANON the next reader also gets an unfinished line.
    quiet[LOCAL_FLAGS] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON)
    termios.tcsetattr(handle, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _owns_terminal() -> bool:
    """Is this process in the foreground, with a terminal at both ends? In the background, tcsetattr would stop it."""
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # standard input is missing or closed
        return False
