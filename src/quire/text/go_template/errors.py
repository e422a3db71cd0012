"""What can be wrong with a template in Go's dialect."""

from __future__ import annotations


class GoSyntaxError(Exception):
    """It cannot be read."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"{problem} in line {line}")
        self.line = line


class GoRunError(Exception):
    """It was read, and cannot be run with what it is given."""


class GoTooBig(Exception):
    """It runs or writes without end."""
