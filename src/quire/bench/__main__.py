"""Measure this machine and print figures with goals: `python -m quire.bench [COMMAND] [MODEL] [OPTIONS]`.

A command is a module with `main(options)`. Only that module is imported: a machine needs only what its command needs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

COMMANDS = {  # name -> module
    "core": "quire.bench.core",
    "cpu": "quire.bench.cpu",
    "architectures": "quire.bench.architectures",
    "cpu-experts": "quire.bench.cpu_experts",
    "cpu-hybrid": "quire.bench.cpu_hybrid",
    "cpu-large": "quire.bench.cpu_large",
    "cpu-threads": "quire.bench.cpu_threads",
    "embed": "quire.bench.embed",
    "embed-gpu": "quire.bench.embed_gpu",
    "front": "quire.bench.front",
    "relay": "quire.bench.relay",
    "split": "quire.bench.split",
    "handover": "quire.bench.handover",
    "models": "quire.bench.models",
    "generator": "quire.bench.generator",
    "gpu": "quire.bench.gpu",
    "speculate-gpu": "quire.bench.speculate_gpu",
    "tune": "quire.bench.tune",
    "gpu-accuracy": "quire.bench.gpu_accuracy",
    "latent": "quire.bench.latent",
    "experts": "quire.bench.experts",
    "states": "quire.bench.states",
    "speculate": "quire.bench.speculate",
    "fleet": "quire.bench.fleet.command",
    "fleet-index": "quire.bench.fleet.index_command",
    "gateway-load": "quire.bench.fleet.gateway_load",
    "speech": "quire.bench.speech",
}
LLAMA_CPP = ("llama.cpp",)
PEERS = {  # command -> the engines that it can measure beside ours
    "cpu": ("llama.cpp", "openvino"),
    "architectures": LLAMA_CPP,
    "cpu-experts": LLAMA_CPP,
    "cpu-hybrid": LLAMA_CPP,
    "cpu-large": LLAMA_CPP,
    "embed": ("torch", "onnxruntime", "llama.cpp"),
}
SECTIONS = {  # command -> the parts of it that can be run alone
    "cpu": ("formats", "streams", "start", "accuracy", "large"),
    "cpu-hybrid": ("formats", "streams"),
}
# Commands that parse the rest of the command line.
PARSE_REST = {
    *("cpu-large", "gpu", "tune", "gpu-accuracy", "latent", "experts", "states", "speculate", "speculate-gpu"),
    *("cpu-threads", "embed-gpu", "fleet", "gateway-load", "speech"),
}


NONE = "none"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="quire bench", description=__doc__)
    parser.add_argument("part", nargs="?", choices=tuple(COMMANDS), default="core", help="what to measure")
    parser.add_argument("model", nargs="?", default="", help="a name or a file")
    parser.add_argument("--peers", default="", metavar="NAME,…", help="engines to compare with: " + _describe(PEERS))
    parser.add_argument("--only", default="", metavar="NAME,…", help="parts to measure: " + _describe(SECTIONS))
    parser.add_argument("--large", action="store_true", help="cpu: also measure a random model of 1B in Q4_K_M")
    parser.add_argument("--quick", action="store_true", help="small sizes, only to see that it works")
    options, rest = parser.parse_known_args(arguments)
    options.rest = rest
    if rest and options.part not in PARSE_REST:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        options.peers = () if options.peers == NONE else _pick("--peers", options.peers, PEERS.get(options.part, ()))
        options.only = _pick("--only", options.only, SECTIONS.get(options.part, ())) if options.only else ()
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs the cleanup that stops the peer's server
    import_module(COMMANDS[options.part]).main(options)


def _describe(choices: Mapping[str, tuple[str, ...]]) -> str:
    return "; ".join(f"{command}: {', '.join(names)}" for command, names in choices.items())


def _pick(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in a list with commas; all that are known if it is empty."""
    names = tuple(text.split(",")) if text else known
    for name in names:
        if name not in known:
            raise ValueError(f"{option}: there is no {name!r}; there are: {', '.join(known) or 'none'}")
    return names


if __name__ == "__main__":
    main()
