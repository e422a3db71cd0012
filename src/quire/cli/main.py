"""Where `quire` and `python -m quire` begin. The version is answered before anything else is imported."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from quire import __version__

INTERRUPTED = 128 + signal.SIGINT
DEMONSTRATION = ("run", "--verbose", "--max-tokens", "160", "smollm2:135m", "Why is the sky blue?")


def main(arguments: Sequence[str] | None = None) -> int:
    """The script `quire`: its exit code. Ctrl-C leaves quietly, wherever it comes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"quire {__version__}")
        return 0
    try:
        code = importlib.import_module("quire.cli.app").run_app(given)
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader left (`quire run … | head`); Python must not complain about it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def main_of_module() -> int:
    """`python -m quire`: with arguments, the script; without, a chat, or one question if nobody is at a terminal."""
    if len(sys.argv) > 1:
        return main()
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        return main(["run"])
    # Whatever standard input is here, it is no question for us, and it may never end.
    with Path(os.devnull).open() as nothing:
        sys.stdin = nothing
        return main(DEMONSTRATION)
