"""The part `cpu`: a model on this CPU, beside llama.cpp, as a table."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace

from quire.bench.cpu import QUICK, Sizes, find_tools, measure
from quire.bench.cpu_figures import figures
from quire.bench.facts import ModelFacts
from quire.bench.located import located
from quire.bench.machine import machine
from quire.bench.peer import BUILD
from quire.bench.table import table
from quire.config import home_folder, load
from quire.store.sources.package_index import SMOLLM2_135M
from quire.store.store import DEFAULT_MODEL


def main(asked: argparse.Namespace) -> None:
    """Print it."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", file=sys.stderr, flush=True)

    sizes = replace(QUICK if asked.quick else Sizes(), with_large=asked.large)
    home, path = home_folder(load()), located(asked.model)
    facts = ModelFacts.of(path)
    tools = None if asked.no_peer else find_tools(home, facts, say)
    load_before = os.getloadavg()[0]
    results = measure(facts, sizes, tools, say)
    say("done")
    is_default = path.stat().st_size == SMOLLM2_135M.size
    peer = f"peer: llama.cpp {BUILD}" if tools is not None else "no peer"
    print(f"{machine()}; {asked.model or DEFAULT_MODEL}; {peer}; load of the machine before: {load_before:.2f}\n")
    print(table(figures(results, is_default)))
