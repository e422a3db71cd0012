"""Entry points of `quire` and `python -m quire`. `--version` is printed before anything else is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from quire import __version__

INTERRUPTED, BROKEN_PIPE = 130, 141  # exit codes of a shell: 128 + the signal's number
DEMONSTRATION = ("run", "--verbose", "--max-tokens", "160", "smollm2:135m", "Why is the sky blue?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Ctrl-C exits without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["--version"]:
        print(f"quire {__version__}")
        return 0
    try:
        code = importlib.import_module("quire.cli.app").run_app(words)
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader is gone (`quire run … | head`); keep Python from reporting it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def main_of_module() -> int:
    """Run `python -m quire`. Without arguments: a chat on a terminal, one sample question elsewhere."""
    if len(sys.argv) > 1:
        return main()
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        return main(["run"])
    # Standard input is not a prompt here, and it may never reach its end.
    with Path(os.devnull).open() as nothing:
        sys.stdin = nothing
        return main(DEMONSTRATION)
