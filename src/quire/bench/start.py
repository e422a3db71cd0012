"""From the start of a process to its first word."""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from pathlib import Path

import quire


def as_installed() -> None:
    """Compile our own modules, as an installer does.

    A source tree under PYTHONDONTWRITEBYTECODE would be compiled again at every start: 0.2 s that nobody waits for who
    has installed Quire.
    """
    compileall.compile_dir(Path(quire.__file__).parent, quiet=2)


def our_start(model: Path) -> float:
    """Seconds until the first byte of an answer of `quire run`."""
    command = [sys.executable, "-m", "quire", "run", str(model), "hi", "--max-tokens", "1"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.read()
    if not first:
        raise RuntimeError(f"quire run {model} said nothing")
    return seconds
