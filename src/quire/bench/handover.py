"""`python -m quire.bench handover`: what is left to do when a prompt for another engine is computed.

Two engines of this process: one computes prompts, the other gets their KV blocks. The *tail* is the time from the end
of the step that computes a prompt's last block to the moment when the other engine queues the request: reading these
blocks, sending, checking and writing them. Blocks of earlier steps are on their way before. Sending each layer as soon
as it is computed could save a part of the tail, and nothing else.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import quantiles
from typing import Any

from quire.bench.engines.model_path import model_path
from quire.bench.machine.description import describe_machine
from quire.config import load
from quire.engine.client import Client
from quire.engine.load import build_engine
from quire.engine.local import LocalEngine
from quire.engine.messages import Failed, ReadLoad
from quire.engine.transfers import TransferCore
from quire.types.output import Finished
from quire.types.request import GenerateRequest, SamplingParams
from quire.types.transfer import PrefixSource
from quire.weights.checkpoint import open_checkpoint

SETTINGS = {"max_context": 4096, "max_rows": 8, "speculate": "off", "transfer_secret": "a secret for this benchmark"}
HEAD = ("transport", "prompt tokens", "prompts", "tokens of the last step", "prompt p50", "tail p50", "p95")
NUM_PROMPTS = 12


class TimedEngine:
    """An engine in a thread. It records when steps end, and when it queues a request whose blocks have come."""

    def __init__(self, model: str, role: str, transport: str) -> None:
        config = load({**SETTINGS, "role": role, "transport": transport}, {})
        engine = build_engine(open_checkpoint(model, config.weights.load_format), "cpu", config)
        assert isinstance(engine.core, TransferCore)
        self.core = engine.core
        self.steps: list[tuple[float, int]] = []  # end, tokens computed up to then
        self.queued: list[float] = []
        for name, record in (("_collect", self._record_step), ("_end_fetch", self._record_queued)):
            setattr(self.core, name, _then(getattr(self.core, name), record))
        self.client = Client(lambda deliver: LocalEngine(engine, deliver))

    def _record_step(self) -> None:
        self.steps.append((time.perf_counter(), self.core.counters().computed_tokens))

    def _record_queued(self) -> None:
        self.queued.append(time.perf_counter())

    @property
    def port(self) -> int:
        """Where it sends blocks."""
        return int(self.client.ask(ReadLoad()).result(30).transfer_port)


def _then(function: Any, record: Any) -> Any:
    def call(*arguments: Any) -> None:
        function(*arguments)
        record()

    return call


def main(options: argparse.Namespace) -> None:
    """Print a table of transports and lengths of prompts."""
    print(describe_machine())
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for transport in ("shared_memory", "tcp"):
        with engines(str(model_path(options.model)), transport) as (prefill, decode):
            hand_over(prefill, decode, 300, "warm-up")
            for length in (300,) if options.quick else (300, 600):
                count = 2 if options.quick else NUM_PROMPTS
                found = [hand_over(prefill, decode, length, f"{length} {number}") for number in range(count)]
                print("| " + " | ".join(row(transport, length, found)) + " |", flush=True)


@contextmanager
def engines(model: str, transport: str) -> Iterator[tuple[TimedEngine, TimedEngine]]:
    """Open an engine that computes prompts, and one that answers."""
    opened = [TimedEngine(model, role, transport) for role in ("prefill", "decode")]
    try:
        yield opened[0], opened[1]
    finally:
        for each in opened:
            each.client.close()


def hand_over(prefill: TimedEngine, decode: TimedEngine, length: int, seed: str) -> tuple[float, float, int]:
    """Answer a random prompt; return the seconds of the prompt and of the tail, and the last step's tokens."""
    tokens = random.Random(seed)
    prompt = tuple(tokens.randrange(1000, 40_000) for _ in range(length))
    source = PrefixSource("127.0.0.1", prefill.port, computes=True, num_tokens=length, seconds=60.0)
    request = GenerateRequest(seed, prompt, SamplingParams(max_tokens=1, temperature=0), prefix_source=source)
    began = time.perf_counter()
    prefill.steps[:] = [(began, prefill.client.counters().computed_tokens)]
    num_failed = decode.client.counters().num_failed_fetches
    (end,) = (news for news in decode.client.stream(request) if isinstance(news, Finished | Failed))
    assert isinstance(end, Finished) and decode.client.counters().num_failed_fetches == num_failed, end
    steps = ((ended, after - before) for (_, before), (ended, after) in pairwise(prefill.steps))
    computed, num_tokens = [step for step in steps if step[1] > 1][-1]  # one of the last token alone brings no block
    return computed - began, decode.queued[-1] - computed, num_tokens


def row(transport: str, length: int, found: Sequence[tuple[float, float, int]]) -> tuple[str, ...]:
    """Return a row of the table."""
    prompts, tails, lasts = zip(*found, strict=True)
    cuts = quantiles(tails, n=20)
    middle = quantiles(prompts, n=2)[0]
    times = (f"{middle:.2f} s", f"{1e3 * cuts[9]:.1f} ms", f"{1e3 * cuts[18]:.1f} ms")
    return transport, f"{length:,}", str(len(found)), f"{min(lasts)} to {max(lasts)}", *times
