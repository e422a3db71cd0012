"""Figures of this machine, with their goals.

`python -m quire.bench [core | cpu [MODEL] [OPTIONS] | front [MODEL] | models [MODEL]]`
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from quire.bench import core, front, models
from quire.bench.cpu import QUICK, Sizes, find_tools, measure
from quire.bench.cpu_figures import figures
from quire.bench.facts import ModelFacts
from quire.bench.peer import BUILD
from quire.bench.table import table
from quire.config import home_folder, load
from quire.store.sources.package_index import SMOLLM2_135M
from quire.store.store import DEFAULT_MODEL, Store


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="quire.bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=("core", "cpu", "front", "models"), default="core")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--no-peer", action="store_true", help="do not compare with llama.cpp")
    parser.add_argument("--large", action="store_true", help="one stream of a 1B model too, with random weights")
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it works")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # orderly, so that no server of the peer's stays behind
    if asked.part == "core":
        print(_machine())
        print(table(core.run()))
    elif asked.part == "front":
        print(_machine())
        print(table(front.run(asked.model)))
    elif asked.part == "models":
        print(_machine())
        print(table(models.run(asked.model)))
    else:
        _cpu(asked.model, replace(QUICK if asked.quick else Sizes(), with_large=asked.large), not asked.no_peer)


def _cpu(model: str, sizes: Sizes, with_peer: bool) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    home = home_folder(load())
    path = Path(model) if Path(model).exists() else Store(home).resolve(model)
    facts = ModelFacts.of(path)
    tools = find_tools(home, facts, say) if with_peer else None
    load_before = os.getloadavg()[0]
    results = measure(facts, sizes, tools, say)
    say("done")
    is_default = path.stat().st_size == SMOLLM2_135M.size
    peer = f"peer: llama.cpp {BUILD}" if tools is not None else "no peer"
    print(f"{_machine()}; {model}; {peer}; load of the machine before: {load_before:.2f}\n")
    print(table(figures(results, is_default)))


def _machine() -> str:
    return f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
