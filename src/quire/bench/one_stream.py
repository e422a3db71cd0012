"""One stream: prompts, decoding, how much of a step is not the model, and what the machine could do meanwhile.

What the machine can do changes from minute to minute where others use the same host. So its limits are measured before
and after each prompt and answer, and these are held against the mean of the two.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from quire.devices import base
from quire.devices.base import Peaks
from quire.devices.facts import DeviceFacts
from quire.engine.llm import LLM
from quire.types.request import SamplingParams

PROMPT, BEFORE, OUT = 512, 16, 128  # tokens of a prompt; of the prompt before decoding; decoded
FIRST_TOKEN_ID = 256
PEAK_SECONDS = 0.25  # for each of the machine's limits


@dataclass(frozen=True, slots=True)
class OneStream:
    """Rates in tokens a second, each of several measured ones; in all columns the same place is the same time."""

    prompt_rates: tuple[float, ...]
    decode_rates: tuple[float, ...]
    overheads: tuple[float, ...]  # share of a decoding step's time outside of the program
    peaks: tuple[Peaks, ...]  # the machine's limits around each; empty if the device cannot tell
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)  # see devices.base.NamesKernels


class TimedDevice(base.Device):
    """The CPU, with a clock at the program's door."""

    name = "cpu"

    def __init__(self) -> None:
        self.seconds: list[float] = []  # of each launch

    def facts(self) -> DeviceFacts:
        """The CPU's."""
        return base.open("cpu").facts()

    def lower(self, *arguments: Any, **choices: Any) -> base.Program:
        """The CPU's own program, timed."""
        return _TimedProgram(base.open("cpu").lower(*arguments, **choices), self.seconds)


class _TimedProgram:
    def __init__(self, program: base.Program, seconds: list[float]) -> None:
        self._program, self._seconds = program, seconds
        self.num_blocks = program.num_blocks
        self.kernels = program.kernels if isinstance(program, base.NamesKernels) else {}

    def launch(self, batch: Any) -> base.Pending:
        """On a CPU the step has run when this returns."""
        began = time.perf_counter()
        pending = self._program.launch(batch)
        self._seconds.append(time.perf_counter() - began)
        return pending


def measured_peaks(seconds: float = PEAK_SECONDS) -> Peaks | None:
    """Of the CPU, now. None if it cannot tell."""
    return base.open("cpu").peaks(seconds)


def our_stream(model: str, vocab_size: int, num_times: int) -> OneStream:
    """Measured in turn, after one of each that does not count."""
    chance = random.Random(0)

    def text(num_tokens: int) -> list[int]:
        return [chance.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(num_tokens)]

    device = TimedDevice()
    prompt_rates, decode_rates, overheads, looks = [], [], [], []
    with LLM(model, device=device, max_context=1024, num_blocks=512, sampling_defaults="none", max_rows=16) as llm:
        for _ in range(1 + num_times):
            (answer,) = llm.generate([text(PROMPT)], _greedy(1))
            prompt_rates.append(PROMPT / answer.usage.first_token_seconds)
            (answer,) = llm.generate([text(BEFORE)], _greedy(OUT))
            decode_rates.append(answer.usage.tokens_per_second)
            seconds = answer.usage.seconds - answer.usage.first_token_seconds
            overheads.append(1 - sum(device.seconds[1 - OUT :]) / seconds)
            looks.append(measured_peaks())
        kernels = llm.client.ready.kernels
    around = tuple(_mean(*pair) for pair in pairwise(look for look in looks if look is not None))
    return OneStream(tuple(prompt_rates[1:]), tuple(decode_rates[1:]), tuple(overheads[1:]), around, kernels)


def _mean(before: Peaks, after: Peaks) -> Peaks:
    read_bytes, multiply_adds = before.read_bytes + after.read_bytes, before.multiply_adds + after.multiply_adds
    return replace(before, read_bytes=read_bytes / 2, multiply_adds=multiply_adds / 2)


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
