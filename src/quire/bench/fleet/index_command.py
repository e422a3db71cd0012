"""`quire bench fleet-index`: memory and speed of the gateway's index, with 10 million blocks of 100 replicas."""

from __future__ import annotations

import argparse
import random
import resource
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

from quire.bench.figures.figure import Figure, at_most
from quire.bench.figures.table import figure_table
from quire.bench.machine.description import describe_machine
from quire.gateway.index.lines import EventLine, StoredEvent
from quire.gateway.index.prefix_index import PrefixIndex
from quire.types.digests import block_digest, root_digest
from quire.types.request import CacheKey

KEY = CacheKey()
BLOCK_TOKENS = 16
PROMPT_TOKENS = 4096
NUM_LOOKUPS = 300


def main(options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    num_replicas, num_blocks = (10, 100_000) if options.quick else (100, 10_000_000)
    print(describe_machine())
    print(figure_table(index_figures(num_replicas, num_blocks)))


def index_figures(num_replicas: int, num_blocks: int) -> list[Figure]:
    """Fill an index, and look up prompts that some replicas have."""
    index, rng = PrefixIndex(), random.Random(0)
    before = _resident_bytes()
    apply_seconds, num_pairs = 0.0, 0
    shared = [_tokens(rng, PROMPT_TOKENS) for _ in range(16)]  # prompts that every replica has
    for number in range(num_replicas):
        line = _line(shared)
        begin = time.perf_counter()
        index.apply(f"replica-{number}", line)
        apply_seconds += time.perf_counter() - begin
        num_pairs += len(line.events)
    last: array[int] = shared[0]
    position = dict.fromkeys(range(num_replicas), 1)
    while index.num_entries < num_blocks:
        number = rng.randrange(num_replicas)
        last = _tokens(rng, PROMPT_TOKENS)
        line = _line([last], after=position[number])
        position[number] += 1
        begin = time.perf_counter()
        assert index.apply(f"replica-{number}", line)
        apply_seconds += time.perf_counter() - begin
        num_pairs += len(line.events)
    used = _resident_bytes() - before
    size = f"{index.num_entries / 1e6:.1f} M blocks, {num_replicas} replicas"
    return [
        Figure(f"memory, {size}", used / 1e9, "GB", at_most(2.0), f"{used / index.num_entries:.0f} bytes per block"),
        Figure("look-up, 4,096 tokens on all replicas", _lookup(index, shared), "µs", at_most(300)),
        Figure("look-up, 4,096 tokens on one replica", _lookup(index, [last]), "µs", at_most(300)),
        Figure("look-up, 4,096 tokens on none", _lookup(index, [_tokens(rng, PROMPT_TOKENS)]), "µs", at_most(300)),
        Figure("event", apply_seconds / num_pairs * 1e6, "µs", note="one stored block, with its digest checked"),
    ]


def _lookup(index: PrefixIndex, prompts: list[array[int]]) -> float:
    """Return the median microseconds of a look-up."""
    seconds = []
    for number in range(NUM_LOOKUPS):
        begin = time.perf_counter()
        index.lookup(prompts[number % len(prompts)], KEY)
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[NUM_LOOKUPS // 2] * 1e6


def _tokens(rng: random.Random, count: int) -> array[int]:
    return array("I", rng.randbytes(4 * count))


def _line(prompts: list[array[int]], after: int | None = None) -> EventLine:
    """Return the events that store these prompts: a snapshot, or the next event after a position."""
    events = [event for prompt in prompts for event in _stored(prompt)]
    if after is None:
        return EventLine(epoch="e", after=1, last=1, block_tokens=BLOCK_TOKENS, part=(1, 1), events=list(events))
    return EventLine(epoch="e", after=after, last=after + 1, block_tokens=BLOCK_TOKENS, events=list(events))


def _stored(prompt: array[int]) -> Iterator[StoredEvent]:
    parent = root_digest(KEY)
    for start in range(0, len(prompt), BLOCK_TOKENS):
        chunk = prompt[start : start + BLOCK_TOKENS]
        digest = block_digest(parent, chunk.tobytes())
        yield StoredEvent(digest.hex(), parent.hex(), tuple(chunk))
        parent = digest


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
