"""Errors of templates in Go's dialect."""

from __future__ import annotations


class GoSyntaxError(Exception):
    """The template cannot be parsed."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"{problem} in line {line}")
        self.line = line


class GoRunError(Exception):
    """The template cannot be run with this data."""


class GoTooBig(Exception):
    """The template exceeds the limits on steps or output."""
