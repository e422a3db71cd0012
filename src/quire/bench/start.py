"""From the start of a process to its first word."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


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
