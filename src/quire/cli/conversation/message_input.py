"""Reads the user's messages, of one or several lines.

A message spans several lines between two \"\"\", or while its lines end with a backslash. A pasted block is one
message, newlines included.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

FENCE = '"""'
PROMPT, CONTINUATION = ">>> ", "... "


def read_message(read: Callable[[str], str]) -> str:
    """Return the next message. EOFError: the user left; inside a message, the lines so far are returned."""
    line = read(PROMPT)
    if line.lstrip().startswith(FENCE):
        return _read_fenced(line.lstrip().removeprefix(FENCE), read)
    lines = []
    with contextlib.suppress(EOFError):
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = ""
            line = read(CONTINUATION)
    return "\n".join([*lines, line]).rstrip()


def _read_fenced(line: str, read: Callable[[str], str]) -> str:
    lines = []
    with contextlib.suppress(EOFError):
        while FENCE not in line:
            lines.append(line)
            line = ""
            line = read(CONTINUATION)
    lines.append(line.partition(FENCE)[0])
    return "\n".join(lines).strip("\n")


def read_line(prompt: str) -> str:
    """Return a line of standard input. The prompt goes to standard error: standard output may be a file."""
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
