"""Measure this machine and print figures with goals: `python -m quire.bench [COMMAND] [MODEL] [OPTIONS]`.

A command is a module with `main(options)`. Only that module is imported: a machine needs only what its command needs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {  # name -> module
    "core": "quire.bench.core",
    "cpu": "quire.bench.cpu",
    "architectures": "quire.bench.architectures",
    "cpu-experts": "quire.bench.cpu_experts",
    "cpu-hybrid": "quire.bench.cpu_hybrid",
    "cpu-large": "quire.bench.cpu_large",
    "front": "quire.bench.front",
    "models": "quire.bench.models",
    "generator": "quire.bench.generator",
    "gpu": "quire.bench.gpu",
    "tune": "quire.bench.tune",
    "gpu-accuracy": "quire.bench.gpu_accuracy",
    "latent": "quire.bench.latent",
    "experts": "quire.bench.experts",
    "states": "quire.bench.states",
}
# Commands that parse the rest of the command line.
PARSE_REST = {"cpu-large", "gpu", "tune", "gpu-accuracy", "latent", "experts", "states"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="quire bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=tuple(COMMANDS), default="core", help="what to measure")
    parser.add_argument("model", nargs="?", default="", help="a name or a file")
    parser.add_argument("--no-peer", action="store_true", help="do not compare with llama.cpp")
    parser.add_argument("--large", action="store_true", help="also measure one stream of random models of 1B and 3B")
    parser.add_argument("--quick", action="store_true", help="small sizes, only to see that it works")
    options, rest = parser.parse_known_args(arguments)
    options.rest = rest
    if rest and options.part not in PARSE_REST:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs the cleanup that stops the peer's server
    import_module(COMMANDS[options.part]).main(options)


if __name__ == "__main__":
    main()
