"""What a user types: messages of one line or of several.

A message spans several lines between two \"\"\", or while its lines end with a backslash. A pasted block is one
message, newlines and all.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

FENCE = '"""'
PROMPT, MORE = ">>> ", "... "


def read_message(read: Callable[[str], str]) -> str:
    """The next message. EOFError: the user leaves; in the middle of a message, what is there is sent."""
    line = read(PROMPT)
    if line.lstrip().startswith(FENCE):
        return _fenced(line.lstrip().removeprefix(FENCE), read)
    lines = []
    with contextlib.suppress(EOFError):
        while line.endswith("\\"):
            lines.append(line[:-1])
            line = ""
            line = read(MORE)
    return "\n".join([*lines, line]).rstrip()


def _fenced(line: str, read: Callable[[str], str]) -> str:
    lines = []
    with contextlib.suppress(EOFError):
        while FENCE not in line:
            lines.append(line)
            line = ""
            line = read(MORE)
    lines.append(line.partition(FENCE)[0])
    return "\n".join(lines).strip("\n")


def read_line(prompt: str) -> str:
    """A line of standard input where the answers go to a file: the prompt must not go there."""
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
