"""`quire bench speculate`: is speculative decoding ever slower?

`python -m quire.bench speculate [MODEL] [--loads code,…] [--concurrency 1,4,16,64] [--pairs 200]` runs requests with
and without drafts in turn, in one process, and prints how many times as fast they are with drafts, with the 95 %
interval. Requests that run together are one measurement: the time from the first submit to the last token. Before each,
the prefix cache is emptied, except in the load whose answers were given before. The order alternates: two pairs with
opposite orders are one value of the statistics, so a machine that gets slower or faster adds nothing to the interval.
The last columns are the same for processor time, which other work on the machine disturbs less.
"""

from __future__ import annotations

import math
import random
import time
from argparse import ArgumentParser, Namespace
from itertools import combinations_with_replacement
from statistics import fmean, median
from typing import Any, NamedTuple

from quire.bench.engines.model_path import model_path
from quire.bench.load.draft_loads import DRAFT_LOADS, DraftLoad
from quire.bench.page.text_table import align_columns
from quire.engine.llm import LLM
from quire.engine.messages import Flush
from quire.types.answer import Completion
from quire.types.request import SamplingParams

CONCURRENCY = (1, 4, 16, 64)
PAIRS, MIN_GROUPS = 200, 16  # pairs of requests in a cell; groups of requests that run together
OUTPUT_TOKENS = 96
GOAL = 0.98  # what the interval of every cell lies above
NORMAL_QUANTILE = 1.96  # standard deviations on either side that have 95 % of a normal distribution
CHOICES = ("off", "auto")


class Interval(NamedTuple):
    """The middle of some ratios, and the bounds of its 95 % interval."""

    ratio: float
    low: float
    high: float

    def columns(self) -> list[str]:
        """Return its columns of the table: with what it says of the goal."""
        verdict = "" if self.low > GOAL else "slower" if self.high < GOAL else "open"
        return [f"{self.ratio:.3f}", f"{self.low:.3f} to {self.high:.3f}", verdict]


class Timing(NamedTuple):
    """How long requests that ran together took."""

    seconds: float
    processor_seconds: float  # of all threads


class Cell(NamedTuple):
    """One load at one concurrency: times as fast as without drafts, by the clock and in processor time."""

    load: str
    concurrency: int
    num_pairs: int
    by_clock: Interval
    by_processor: Interval
    tokens_per_second: float  # with drafts
    drafted: float  # tokens for each output token
    accepted: float  # of the output

    def row(self) -> list[str]:
        """Return its line of the table."""
        counts = [str(self.concurrency), str(self.num_pairs), f"{self.tokens_per_second:.0f}"]
        shares = [f"{self.drafted:.0%}", f"{self.accepted:.0%}"]
        return [self.load, *counts, *shares, *self.by_clock.columns(), *self.by_processor.columns()]


HEADS = (
    *("load", "streams", "pairs", "tok/s", "drafted", "accepted"),
    *("times as fast", "95 % interval", "", "processor time", "95 % interval", ""),
)


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, measure and print a table."""
    parser = ArgumentParser(prog="quire bench speculate", description=__doc__)
    parser.add_argument("--loads", default=",".join(DRAFT_LOADS), help="which: " + ", ".join(DRAFT_LOADS))
    parser.add_argument(
        "--concurrency", default=",".join(map(str, CONCURRENCY)), help="requests at a time, with commas"
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of requests in each cell, with and without drafts")
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS, help="of each answer")
    options = parser.parse_args(arguments.rest)
    loads = {name: DRAFT_LOADS[name] for name in options.loads.split(",")}
    nums_streams = [int(each) for each in options.concurrency.split(",")]
    num_pairs = 2 if arguments.quick else options.pairs
    rows = []
    with LLM(model_path(arguments.model or "smollm2:135m"), max_context=2048, max_rows=max(nums_streams)) as llm:
        for num_streams in nums_streams:
            for name, load in loads.items():
                cell = measure_cell(llm, name, load, num_streams, (num_pairs, options.output_tokens))
                rows.append(cell.row())
                print(align_columns(HEADS, rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + align_columns(HEADS, rows))


def measure_cell(llm: LLM, name: str, load: DraftLoad, num_streams: int, sizes: tuple[int, int]) -> Cell:
    """Measure pairs of groups of `num_streams` requests; one more at the beginning is a warm-up."""
    num_pairs, num_tokens = sizes
    num_groups = max(-(-num_pairs // num_streams), min(num_pairs, MIN_GROUPS))
    num_groups += num_groups % 2  # as many with each order
    pairs, answers = list[tuple[Timing, Timing]](), list[Completion]()  # without and with drafts; answers with
    for index in range(-1, num_groups):
        rng = random.Random(f"{name} {index}")
        prompts = [load.prompt(rng, llm.client.ready.vocab_size) for _ in range(num_streams)]
        if load.is_repeated:
            llm.client.ask(Flush()).result()
            _run(llm, load, prompts, index, num_tokens, "off")
        found = {each: _run(llm, load, prompts, index, num_tokens, each) for each in CHOICES[:: 1 if index % 2 else -1]}
        if index >= 0:
            pairs.append((found["off"][0], found["auto"][0]))
            answers += found["auto"][1]
    by_clock = interval_of([off.seconds / auto.seconds for off, auto in pairs])
    by_processor = interval_of([off.processor_seconds / auto.processor_seconds for off, auto in pairs])
    output, drafted, accepted = (
        sum(getattr(each.usage, n) for each in answers) for n in ("output", "drafted", "accepted")
    )
    counts = (output / sum(auto.seconds for _, auto in pairs), drafted / output, accepted / output)
    return Cell(name, num_streams, num_groups * num_streams, by_clock, by_processor, *counts)


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
    llm: LLM, load: DraftLoad, prompts: list[Any], seed: int, num_tokens: int, speculate: str
) -> tuple[Timing, list[Completion]]:
    """Answer all prompts at once; return how long it took, and the answers."""
    if not load.is_repeated:
        llm.client.ask(Flush()).result()
    if load.shared:
        llm.generate([load.shared], SamplingParams(max_tokens=1), progress=False)
    ways = [
        SamplingParams(seed=1000 * seed + place, speculate=speculate, **load.sampling(num_tokens))
        for place in range(len(prompts))
    ]
    began, processor_began = time.perf_counter(), time.process_time()
    answers = llm.generate(prompts, ways, constraint=load.constraint, progress=False)
    return Timing(time.perf_counter() - began, time.process_time() - processor_began), answers
