"""`quire bench speculate`: is speculative decoding ever slower?

`python -m quire.bench speculate [MODEL] [--loads code,…] [--concurrency 1,4,16,64] [--pairs 200]` runs requests with
and without drafts in turn, in one engine, and prints how many times as fast they are with drafts, with the 95 %
interval. Two engines without drafts differ by a per cent. `--server` sends the requests to a `quire
serve`, without a warm-up. `--noise` compares runs without drafts with each other: what such a ratio has by chance.
Before each measurement the prefix cache is emptied, except in the load whose answers were given before.

Requests that run together are one measurement, of which there are four ratios: the time that one request takes (the
geometric mean of theirs), the part of it after its first token, the time until the last one ends, and the processor
time of all, which other work on the machine disturbs less. A star marks an interval that does not lie above the goal.
The order alternates: two pairs with opposite orders are one value of the statistics, so a machine that gets slower or
faster adds nothing to the interval.
"""

from __future__ import annotations

import math
import random
import time
from argparse import ArgumentParser, Namespace
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import Any, NamedTuple

from quire.bench.engines.draft_engines import DraftedAnswer, DraftEngine, local_engine, served_engine
from quire.bench.engines.model_path import model_path
from quire.bench.load.draft_loads import DRAFT_LOADS, DraftLoad
from quire.bench.page.text_table import align_columns
from quire.types.request import SamplingParams

CONCURRENCY = (1, 4, 16, 64)
PAIRS, MIN_GROUPS = 200, 32  # pairs of requests in a cell; groups of requests that run together
OUTPUT_TOKENS = 96
GOAL = 0.98  # every interval lies above it
LEAST_SECONDS = 0.01  # of processor time: what a server's processes report
NORMAL_QUANTILE = 1.96  # standard deviations on either side that have 95 % of a normal distribution


class Interval(NamedTuple):
    """The middle of some ratios, and the bounds of its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        star = "" if self.low > GOAL else " *"
        return f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f}){star}"


class Timing(NamedTuple):
    """How long requests that ran together took."""

    requests: list[tuple[float, float]]  # seconds of each: in all, and after the first token
    seconds: float
    processor_seconds: float  # of all threads

    def ratios(self, other: Timing) -> list[float]:
        """Return how many times as fast the other one was, in the order of `MEASURES`."""
        pairs = zip(self.requests, other.requests, strict=True)
        logs = [[math.log(one / two) for one, two in zip(*pair, strict=True)] for pair in pairs]
        by_request = [math.exp(fmean(each)) for each in zip(*logs, strict=True)]
        return [*by_request, self.seconds / other.seconds, self.processor_seconds / other.processor_seconds]


class Cell(NamedTuple):
    """One load at one concurrency."""

    load: str
    concurrency: int
    num_pairs: int
    tokens_per_second: float  # with drafts
    drafted: float  # tokens for each output token
    accepted: float  # of the output
    times_as_fast: list[Interval]  # of `MEASURES`

    def row(self) -> list[str]:
        """Return its line of the table."""
        counts = [str(self.concurrency), str(self.num_pairs), f"{self.tokens_per_second:.0f}"]
        return [self.load, *counts, f"{self.drafted:.0%}", f"{self.accepted:.0%}", *map(str, self.times_as_fast)]


MEASURES = ("a request", "after its first token", "all together", "processor time")
HEADS = ("load", "streams", "pairs", "tok/s", "drafted", "accepted", *MEASURES)


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print a table."""
    parser = ArgumentParser(prog="quire bench speculate", description=__doc__)
    parser.add_argument("--loads", default=",".join(DRAFT_LOADS), help="which: " + ", ".join(DRAFT_LOADS))
    parser.add_argument(
        "--concurrency", default=",".join(map(str, CONCURRENCY)), help="requests at a time, with commas"
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of requests in each cell, with and without drafts")
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS, help="of each answer")
    parser.add_argument("--noise", action="store_true", help="no drafts on either side: shows the machine's own noise")
    parser.add_argument("--server", action="store_true", help="over HTTP, with a server in processes of its own")
    options = parser.parse_args(arguments.rest)
    if options.output_tokens < 2:
        parser.error("--output-tokens must be at least 2: the time after the first token is measured too")
    loads = {name: DRAFT_LOADS[name] for name in options.loads.split(",")}
    nums_streams = [int(each) for each in options.concurrency.split(",")]
    num_pairs = 2 if arguments.quick else options.pairs
    rows = []
    opened = served_engine if options.server else local_engine
    with opened(model_path(arguments.model or "smollm2:135m"), max(nums_streams)) as engine:
        for num_streams in nums_streams:
            for name, load in loads.items():
                sizes, compared = (num_pairs, options.output_tokens), "off" if options.noise else "auto"
                cell = measure_cell(engine, name, load, num_streams, sizes, compared)
                rows.append(cell.row())
                print(align_columns(HEADS, rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + align_columns(HEADS, rows))


def measure_cell(
    engine: DraftEngine, name: str, load: DraftLoad, num_streams: int, sizes: tuple[int, int], compared: str
) -> Cell:
    """Measure pairs of groups of `num_streams` requests, the first without drafts, the second as `compared` says.

    In this process, one more pair at the beginning is a warm-up.
    """
    num_pairs, num_tokens = sizes
    num_groups = max(-(-num_pairs // num_streams), min(num_pairs, MIN_GROUPS))
    num_groups += num_groups % 2  # as many with each order
    pairs, answers = list[tuple[Timing, Timing]](), list[DraftedAnswer]()  # without and with drafts; answers with
    for index in range(-1 if engine.needs_warm_up else 0, num_groups):
        rng = random.Random(f"{name} {index}")
        prompts = [load.prompt(rng, engine.vocab_size) for _ in range(num_streams)]
        if load.is_repeated:
            engine.flush()
            _run(engine, load, prompts, index, num_tokens, "off")
        ways = ("off", compared)
        first, second = (
            _run(engine, load, prompts, index, num_tokens, each) for each in ways[:: 1 if index % 2 else -1]
        )
        without, found = (first, second) if index % 2 else (second, first)
        if index >= 0:
            pairs.append((without[0], found[0]))
            answers += found[1]
    intervals = [interval_of(list(each)) for each in zip(*(off.ratios(auto) for off, auto in pairs), strict=True)]
    output, drafted, accepted = (
        sum(getattr(each, name) for each in answers) for name in ("output", "drafted", "accepted")
    )
    counts = (output / sum(auto.seconds for _, auto in pairs), drafted / output, accepted / output)
    return Cell(name, num_streams, num_groups * num_streams, *counts, intervals)


def interval_of(ratios: list[float]) -> Interval:
    """Return the middle of ratios, and its 95 % interval by Wilcoxon's signed ranks.

    So a pair in which the machine did other work for a moment counts like any pair on its side of the middle. Two
    neighbours, of opposite orders, are one value.
    """
    logs = [math.log(ratio) for ratio in ratios]
    values = [fmean(pair) for pair in zip(logs[::2], logs[1::2], strict=True)]
    means = sorted(fmean(pair) for pair in combinations_with_replacement(values, 2))
    count = len(values)
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    outside = math.floor(len(means) / 2 - NORMAL_QUANTILE * deviation - 0.5)  # of the means, on either side
    if outside < 0:  # too few values
        return Interval(math.exp(median(means)), 0.0, math.inf)
    return Interval(*(math.exp(each) for each in (median(means), means[outside], means[-1 - outside])))


def _run(
    engine: DraftEngine, load: DraftLoad, prompts: list[Any], seed: int, num_tokens: int, speculate: str
) -> tuple[Timing, list[DraftedAnswer]]:
    """Answer all prompts at once; return how long it took, and the answers."""
    if not load.is_repeated:
        engine.flush()
    if load.shared:
        engine.answer([load.shared], [SamplingParams(max_tokens=1)], None)
    ways = [
        SamplingParams(seed=1000 * seed + place, speculate=speculate, **load.sampling(num_tokens))
        for place in range(len(prompts))
    ]
    processor_began, began = engine.processor_seconds(), time.perf_counter()
    answers = engine.answer(prompts, ways, load.constraint)
    seconds, processor_seconds = time.perf_counter() - began, engine.processor_seconds() - processor_began
    requests = [(answer.seconds, answer.seconds - answer.first_token_seconds) for answer in answers]
    return Timing(requests, seconds, max(processor_seconds, LEAST_SECONDS)), answers
