"""Figures of this machine, with their goals: `python -m quire.bench [PART] [MODEL] [OPTIONS]`.

A part is a module with `main(asked)`. Only the one that is asked for is imported: a machine that lacks what another
needs can run it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

PARTS = {  # the module of each
    "core": "quire.bench.core",
    "cpu": "quire.bench.cpu_table",
    "front": "quire.bench.share",
    "models": "quire.bench.models",
    "generator": "quire.bench.generator",
    "gpu": "quire.bench.gpu",
    "tune": "quire.bench.tune",
    "gpu-accuracy": "quire.bench.gpu_accuracy",
}
OWN_OPTIONS = {"gpu", "tune", "gpu-accuracy"}  # parts that read the rest of the command line themselves


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="quire bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=tuple(PARTS), default="core")
    parser.add_argument("model", nargs="?", default="", help="a name or a file")
    parser.add_argument("--no-peer", action="store_true", help="do not compare with llama.cpp")
    parser.add_argument("--large", action="store_true", help="one stream of a 1B model too, with random weights")
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it works")
    asked, rest = parser.parse_known_args(arguments)
    asked.rest = rest
    if asked.rest and asked.part not in OWN_OPTIONS:
        parser.error(f"unrecognized arguments: {' '.join(asked.rest)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # orderly, so that no server of the peer's stays behind
    import_module(PARTS[asked.part]).main(asked)


if __name__ == "__main__":
    main()
