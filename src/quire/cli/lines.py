"""What a user types: line editing and history, and messages of several lines.

A message goes on over several lines between two \"\"\", or while its lines end with a backslash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import readline
except ImportError:  # some builds of Python have none: then there is neither editing nor history
    readline = None  # type: ignore[assignment]

FENCE = '"""'
PROMPT, MORE = ">>> ", "... "
MAX_HISTORY = 1000


def read_message(read: Callable[[str], str] = input) -> str:
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


@contextlib.contextmanager
def history(path: Path) -> Iterator[None]:
    """Lines of earlier chats behind the arrow keys. A history that cannot be kept is no reason not to chat."""
    if readline is None:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
