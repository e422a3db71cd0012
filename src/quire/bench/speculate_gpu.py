"""`quire bench speculate-gpu`: how much faster drafts make a GPU, if a given share of drafted tokens is right.

`python -m quire.bench speculate-gpu [--shape llama8b] [--acceptance 0.7] [--batch 1,16,64]` needs torch, triton and
numpy, no server. The model is random, but its text is known (engines/predictable_model.py), and so to the drafter,
which is right at the given rate. Runs with and without drafts alternate: the same prompts, greedy. Output tokens are
counted from when all answers have begun until the first one ends, so that every step has the whole batch. Choices of
the engine are its defaults, which it learns in a run before. It prints a JSON line for each batch: tokens per second
without and with drafts and their ratio (medians over the pairs); the share of drafted tokens that were accepted, and
how many a step had; the milliseconds of a step, and the share in which the GPU was busy, each without and with drafts.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from quire.bench.engines.predictable_model import KnowingDrafter, PredictableDevice
from quire.bench.engines.random_models import LOAD_FORMAT, SHAPES, write_config
from quire.config import load as load_config
from quire.devices import base
from quire.engine.core import EngineCore
from quire.engine.load import build_engine
from quire.engine.messages import Cancel, Counters, Failed, Inward, Outward, Shutdown, Submit
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest, SamplingParams
from quire.types.sampling_values import AUTO, OFF
from quire.weights.checkpoint import open_checkpoint

NAMES = {"llama-8b": "llama8b", "llama-70b": "llama70b"}  # other spellings of shapes


class RunFigures(NamedTuple):
    """What one run has measured."""

    tokens_per_s: float
    drafted: int
    accepted: int
    steps: int
    seconds: float
    busy_seconds: float


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line, load the model and print a line for each batch."""
    parser = ArgumentParser(prog="quire bench speculate-gpu", description=__doc__)
    parser.add_argument("--shape", choices=sorted([*SHAPES, *NAMES]), default="llama8b", help="of the random model")
    parser.add_argument("--fp8", action="store_true", help="weights and activations as FP8")
    parser.add_argument("--acceptance", default="0.7", help="probabilities that a drafted token is right")
    parser.add_argument("--batch", default="1,16,64", help="numbers of answers at a time, separated by commas")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=384, help="tokens of each answer")
    parser.add_argument("--pairs", type=int, default=3, help="runs with and without drafts, for each batch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the engine")
    options = parser.parse_args(arguments.rest)
    settings: dict[str, Any] = {"max_rows": 64, "max_step_tokens": 8192, "max_context": 2048}
    settings |= dict(each.split("=", 1) for each in options.set) | ({"quantize": "fp8"} if options.fp8 else {})
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), NAMES.get(options.shape, options.shape))
        checkpoint = open_checkpoint(folder, LOAD_FORMAT)
        vocab_size = int(checkpoint.metadata["vocab_size"])
        drafter = KnowingDrafter(vocab_size, 1.0)
        device = PredictableDevice(base.open(options.device))
        core = build_engine(checkpoint, device, load_config(settings, environ={}), drafters=[drafter]).core
        gc.collect()
        gc.freeze()  # as a server's engine does after loading
        SpeculationBench(core, options, drafter, vocab_size).run()


class SpeculationBench:
    """Drives the step loop: submits a run whenever the engine is idle and has nothing left to prepare."""

    def __init__(self, core: EngineCore, options: Namespace, drafter: KnowingDrafter, vocab_size: int) -> None:
        self._core, self._options, self._drafter, self._vocab_size = core, options, drafter, vocab_size
        self._script = self._runs()
        self._cancels: list[Inward] = []
        self._texts: dict[str, list[int]] = {}  # of the run, by request; the prompt's last token first
        self._began = self._ended = 0.0  # the time in which all texts grow
        self._num_tokens = [0, 0]  # at its beginning and at its end
        self._counters: list[Counters] = []

    def run(self) -> None:
        """Run all batches."""
        self._core.run(self._receive, self._send)

    def _receive(self, timeout: float | None) -> Sequence[Inward]:
        if timeout is None:
            return next(self._script, [Shutdown()])
        cancels, self._cancels = self._cancels, []
        return cancels

    def _runs(self) -> Iterator[list[Inward]]:
        """Yield the requests of each run; print a batch's figures after its last one."""
        options, number = self._options, 0
        batches = [int(each) for each in options.batch.split(",")]
        for acceptance, batch in product(map(float, options.acceptance.split(",")), batches):
            self._drafter.acceptance = acceptance
            runs: dict[str, list[RunFigures]] = {OFF: [], AUTO: []}
            for pair in range(options.pairs + 1):  # the first one is to warm up
                for speculate in (OFF, AUTO) if pair % 2 else (AUTO, OFF):
                    number += 1
                    yield self._requests(batch, f"{number}", pair, speculate)
                    if pair:
                        runs[speculate].append(self._figures())
            print(json.dumps(self._line(batch, runs)), flush=True)

    def _requests(self, batch: int, name: str, pair: int, speculate: str) -> list[Inward]:
        options, rng = self._options, random.Random(1000 * batch + pair)
        sampling = SamplingParams(max_tokens=options.output, temperature=0.0, ignore_eos=True, speculate=speculate)
        self._texts, self._began, self._ended = {}, 0.0, 0.0
        requests: list[Inward] = []
        for index in range(batch):
            prompt = tuple(rng.randrange(self._vocab_size) for _ in range(options.prompt))
            self._texts[f"{name}-{index}"] = [prompt[-1]]
            requests.append(Submit(GenerateRequest(f"{name}-{index}", prompt, sampling)))
        return requests

    def _send(self, messages: list[Outward]) -> None:
        """Record new tokens. Once an answer has ended, the others are cancelled."""
        now = time.perf_counter()
        for message in messages:
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, Tokens | Finished) and not self._ended:
                self._texts[message.request_id] += message.tokens
        num_tokens = sum(len(text) - 1 for text in self._texts.values())
        if not self._began and all(len(text) > 1 for text in self._texts.values()):
            self._began, self._num_tokens[0], self._counters = now, num_tokens, [self._core.counters()]
        elif not self._ended and any(isinstance(message, Finished) for message in messages):
            self._ended, self._num_tokens[1] = now, num_tokens
            self._counters.append(self._core.counters())
            self._cancels = [Cancel(name) for name in self._texts]

    def _figures(self) -> RunFigures:
        for text in self._texts.values():
            if any((token - text[0] - place) % self._vocab_size for place, token in enumerate(text)):
                raise ValueError("an answer is not the known text: figures of this run would mean nothing")
        before, after = self._counters
        drafted, accepted = (
            sum(getattr(after, name).values()) - sum(getattr(before, name).values())
            for name in ("drafted_tokens", "accepted_drafts")
        )
        seconds, busy = self._ended - self._began, after.busy_seconds - before.busy_seconds
        rate = (self._num_tokens[1] - self._num_tokens[0]) / seconds
        return RunFigures(rate, drafted, accepted, after.num_steps - before.num_steps, seconds, busy)

    def _line(self, batch: int, runs: dict[str, list[RunFigures]]) -> dict[str, Any]:
        without, with_drafts = (statistics.median(each.tokens_per_s for each in runs[kind]) for kind in (OFF, AUTO))
        ratios = [on.tokens_per_s / off.tokens_per_s for off, on in zip(runs[OFF], runs[AUTO], strict=True)]
        totals = {kind: RunFigures(*(sum(column) for column in zip(*runs[kind], strict=True))) for kind in runs}
        drafted, accepted, steps = totals[AUTO][1:4]
        return {
            "batch": batch,
            "acceptance": self._drafter.acceptance,
            "off_tokens_per_s": round(without, 1),
            "on_tokens_per_s": round(with_drafts, 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(each, 3) for each in ratios],
            "accepted_share": round(accepted / max(drafted, 1), 3),
            "drafts_per_step": round(drafted / max(steps, 1), 2),
            "step_ms": [round(1e3 * each.seconds / max(each.steps, 1), 3) for each in totals.values()],
            "busy": [round(each.busy_seconds / each.seconds, 3) for each in totals.values()],
        }
