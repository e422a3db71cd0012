"""Measure the time from the start of `quire run` to its first output."""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from pathlib import Path

import quire


def compile_modules() -> None:
    """Compile our modules to bytecode, as an installer does.

    A source tree under PYTHONDONTWRITEBYTECODE is compiled again at every start: 0.2 s that an installed Quire does
    not need.
    """
    compileall.compile_dir(Path(quire.__file__).parent, quiet=2)


def start_seconds(model: Path) -> float:
    """Return the seconds until the first byte of an answer of `quire run`."""
    command = [sys.executable, "-m", "quire", "run", str(model), "hi", "--max-tokens", "1"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.read()
    if not first:
        raise RuntimeError(f"quire run {model} printed nothing")
    return seconds
