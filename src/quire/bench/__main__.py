"""`python -m quire.bench [core | cpu [MODEL]]`: figures of this machine, those of the pure core with their targets."""

from __future__ import annotations

import argparse
import platform

from quire.bench import core, cpu
from quire.store.store import DEFAULT_MODEL


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="quire.bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("core", "cpu"), default="core")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    asked = parser.parse_args()
    print(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}", flush=True)
    for figure in core.run() if asked.part == "core" else cpu.run(asked.model):
        print(figure, flush=True)


if __name__ == "__main__":
    main()
