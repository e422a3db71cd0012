"""`python -m quire.bench [core | cpu [MODEL] | front]`: figures of this machine, some of them with their targets."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from functools import partial

from quire.bench import core, cpu, front
from quire.bench.figure import Figure
from quire.store.store import DEFAULT_MODEL


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="quire.bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("core", "cpu", "front"), default="core")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    asked = parser.parse_args()
    print(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}", flush=True)
    runs: dict[str, Callable[[], list[Figure]]]
    runs = {"core": core.run, "cpu": partial(cpu.run, asked.model), "front": partial(front.run, asked.model)}
    for figure in runs[asked.part]():
        print(figure, flush=True)


if __name__ == "__main__":
    main()
