"""`quire bench architectures`: random models of each architecture on this CPU, beside llama.cpp and beside Llama.

All have the size of SmolLM2-135M, so what differs is how well an architecture's ops are fused. Its rates, relative to
the bytes that a token reads and to the products that it needs, are compared with those of Llama.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quire.bench.cpu_bench import CpuBench, find_peers
from quire.bench.engines.model_facts import ModelFacts
from quire.bench.engines.model_path import model_path
from quire.bench.engines.small_model import write_small_model
from quire.bench.figures.cpu_results import FormatResult
from quire.bench.figures.figure import Figure, at_least
from quire.bench.figures.table import figure_table
from quire.bench.machine.description import describe_machine
from quire.config import home_folder, load
from quire.models.registry import all_architectures
from quire.types.errors import QuireError

LLAMA = "llama"
NUM_TURNS, QUICK_TURNS = 5, 1
GOAL = at_least(0.9)


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table. `options.model`: GGUF names of architectures, with commas; empty: all."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    home, tokenizer_model = home_folder(load()), model_path("")
    known = sorted(arch.gguf for arch in all_architectures() if arch.gguf is not None)
    names = [LLAMA, *(name for name in (options.model.split(",") if options.model else known) if name != LLAMA)]
    facts = []
    for name in names:
        try:
            facts.append(ModelFacts.of(write_small_model(name, tokenizer_model, home / "bench"), name))
        except QuireError as error:
            say(f"{name} is left out: {error}")
    bench = CpuBench(find_peers(options.peers, home, facts[0], say), say, num_repeats=1 if options.quick else 3)
    turns = [[bench.measure_stream(each) for each in facts] for _ in range(QUICK_TURNS if options.quick else NUM_TURNS)]
    print(describe_machine())
    print(figure_table(list(architecture_figures(turns))))


@dataclass(frozen=True, slots=True)
class Rates:
    """The fastest repeats of one model, in tokens a second: on a shared machine, slower ones measure the others."""

    facts: ModelFacts
    decode: float
    prompt: float
    peer_decode: Mapping[str, float]
    peer_prompt: Mapping[str, float]

    @classmethod
    def of(cls, results: Sequence[FormatResult]) -> Rates:
        """Return the rates of all turns of one model."""
        peers = {name: [each.peers[name] for each in results if name in each.peers] for name in _peer_names(results)}
        return cls(
            facts=results[0].facts,
            decode=max(rate for result in results for rate in result.ours.decode_rates),
            prompt=max(rate for result in results for rate in result.ours.prompt_rates),
            peer_decode={name: max(rate for turn in turns for rate in turn.decode) for name, turns in peers.items()},
            peer_prompt={name: max(rate for turn in turns for rate in turn.prompt) for name, turns in peers.items()},
        )

    @property
    def read_rate(self) -> float:
        """Weight bytes a second in decode."""
        return self.decode * self.facts.decode_bytes

    @property
    def product_rate(self) -> float:
        """Multiply-adds a second in prompts."""
        return self.prompt * self.facts.prompt_multiply_adds


def _peer_names(results: Sequence[FormatResult]) -> list[str]:
    return list(dict.fromkeys(name for each in results for name in each.peers))


def architecture_figures(turns: Sequence[Sequence[FormatResult]]) -> Iterator[Figure]:
    """Yield the rates of each model, and its shares of the first one's."""
    rates = [Rates.of(results) for results in zip(*turns, strict=True)]
    llama = rates[0]
    for each in rates:
        label = each.facts.label
        yield Figure(f"decode, one stream, {label}", each.decode, "tok/s", peers=each.peer_decode)
        yield Figure(f"prompt of 512 tokens, {label}", each.prompt, "tok/s", peers=each.peer_prompt)
        if each is not llama:
            size = f"{each.facts.decode_bytes / 1e6:.0f} MB a token"
            yield Figure(f"decode, {label}: read rate over Llama's", each.read_rate / llama.read_rate, "×", GOAL, size)
            size = f"{each.facts.prompt_multiply_adds / 1e6:.0f} M multiply-adds a token"
            share = each.product_rate / llama.product_rate
            yield Figure(f"prompt, {label}: product rate over Llama's", share, "×", GOAL, size)
