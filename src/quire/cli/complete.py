"""`quire complete`: what the completion scripts of shells ask. It is on no help page."""

from __future__ import annotations

from dataclasses import dataclass

from quire.cli.completion import print_candidates
from quire.cli.options import Given, argument, command


@dataclass(frozen=True, slots=True)
class CompleteOptions:
    """Where."""

    line: str = argument(..., "The line up to the cursor.")


@command(CompleteOptions)
def complete(options: CompleteOptions, given: Given) -> None:
    """Print what may stand at the end of a line, one candidate a line."""
    print_candidates(options.line)
