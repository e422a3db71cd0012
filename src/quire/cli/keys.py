"""Keep typed keys out of what is being printed.

While an answer streams, the terminal does not echo. Keys that are typed meanwhile stay in its input queue, and whatever
reads the terminal next gets them: the chat's next prompt, or the user's shell.
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

LOCAL_FLAGS = 3  # their place among a terminal's attributes
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"


@contextmanager
def keys_not_echoed() -> Iterator[None]:
    """Switch the echo and line editing of the terminal off within. Ctrl-C stays a signal."""
    if termios is None or not _owns_terminal():
        yield
        return
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    quiet = list(before)
    # Without ICANON: an unfinished line too is handed over to the next reader.
    quiet[LOCAL_FLAGS] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON)
    termios.tcsetattr(handle, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _owns_terminal() -> bool:
    """Are both ends a terminal, and is this process in its foreground? In the background, changing it stops us."""
    try:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # no standard input, or one that was closed
        return False
