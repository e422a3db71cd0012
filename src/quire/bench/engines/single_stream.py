"""Measure one stream of our engine: prompt rate, decode rate, the engine's overhead, and the machine's peak rates.

On a shared host the machine's peak rates change from minute to minute. They are measured before and after each prompt
and answer, whose rates are compared with the mean of the two.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from quire.bench.load.single_prompts import DECODE_TOKENS, PROMPT_TOKENS, single_prompts
from quire.devices import base
from quire.devices.base import Peaks
from quire.devices.facts import DeviceFacts
from quire.engine.llm import LLM
from quire.types.request import SamplingParams

PEAK_SECONDS = 0.25  # for each of the machine's peak rates


@dataclass(frozen=True, slots=True)
class SingleStream:
    """Rates in tokens a second. The same index in all tuples is the same repeat."""

    prompt_rates: tuple[float, ...]
    decode_rates: tuple[float, ...]
    overheads: tuple[float, ...]  # share of a decode step spent outside the program
    peaks: tuple[Peaks, ...]  # the machine's peak rates at the time; empty if the device cannot measure them
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)  # see devices.base.ReportsKernels


class TimedDevice(base.Device):
    """The CPU device, with each launch of its program timed."""

    name = "cpu"

    def __init__(self) -> None:
        self.seconds: list[float] = []  # of each launch

    def facts(self) -> DeviceFacts:
        """Return the CPU's facts."""
        return base.open("cpu").facts()

    def lower(self, *arguments: Any) -> base.Program:
        """Return the CPU's program, timed."""
        return _TimedProgram(base.open("cpu").lower(*arguments), self.seconds)


class _TimedProgram:
    def __init__(self, program: base.Program, seconds: list[float]) -> None:
        self._program, self._seconds = program, seconds
        self.num_blocks = program.num_blocks
        self.kernels = program.kernels if isinstance(program, base.ReportsKernels) else {}

    def launch(self, batch: Any) -> base.Pending:
        """Launch a step, which on a CPU has ended when this returns."""
        began = time.perf_counter()
        pending = self._program.launch(batch)
        self._seconds.append(time.perf_counter() - began)
        return pending


def measure_peaks(seconds: float = PEAK_SECONDS) -> Peaks | None:
    """Return the CPU's peak rates, measured now. None: the device cannot measure them."""
    return base.open("cpu").peaks(seconds)


def measure_single_stream(model: str, vocab_size: int, num_repeats: int) -> SingleStream:
    """Measure prompt and decode alternately; the first of each is a warm-up."""
    device = TimedDevice()
    prompt_rates, decode_rates, overheads, peaks = [], [], [], []
    settings: dict[str, Any] = {
        "sampling_defaults": "none",
        "speculate": "off",
    }  # every step has one token, as the peers' have
    with LLM(model, device=device, max_context=1024, num_blocks=512, max_rows=16, **settings) as llm:
        for prompt, decode_prompt in single_prompts(vocab_size, 1 + num_repeats):
            (answer,) = llm.generate([prompt], _greedy(1))
            prompt_rates.append(PROMPT_TOKENS / answer.usage.first_token_seconds)
            (answer,) = llm.generate([decode_prompt], _greedy(DECODE_TOKENS))
            decode_rates.append(answer.usage.tokens_per_second)
            seconds = answer.usage.seconds - answer.usage.first_token_seconds
            overheads.append(1 - sum(device.seconds[1 - DECODE_TOKENS :]) / seconds)
            peaks.append(measure_peaks())
        kernels = llm.client.ready.kernels
    means = tuple(_mean(*pair) for pair in pairwise(each for each in peaks if each is not None))
    return SingleStream(tuple(prompt_rates[1:]), tuple(decode_rates[1:]), tuple(overheads[1:]), means, kernels)


def _mean(before: Peaks, after: Peaks) -> Peaks:
    read_bytes, multiply_adds = before.read_bytes + after.read_bytes, before.multiply_adds + after.multiply_adds
    return replace(before, read_bytes=read_bytes / 2, multiply_adds=multiply_adds / 2)


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
