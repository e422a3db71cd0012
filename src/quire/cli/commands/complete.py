"""`quire complete`: print completions for the shells' completion scripts. It is on no help page."""

from __future__ import annotations

from dataclasses import dataclass

from quire.cli.completion import print_candidates
from quire.cli.options import CommandSettings, argument, command


@dataclass(frozen=True, slots=True)
class CompleteOptions:
    """Options of `quire complete`."""

    line: str = argument(..., "The line up to the cursor.")


@command(CompleteOptions)
def complete(options: CompleteOptions, settings: CommandSettings) -> None:
    """Print the completions of a line, one per line."""
    print_candidates(options.line)
