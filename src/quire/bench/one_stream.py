"""One stream: prompts, decoding, and how much of a step is not the model."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from quire.devices import base
from quire.engine.llm import LLM
from quire.types.request import SamplingParams

PROMPT, BEFORE, OUT = 512, 16, 128  # tokens of a prompt; of the prompt before decoding; decoded
FIRST_TOKEN_ID = 256


@dataclass(frozen=True, slots=True)
class OneStream:
    """Rates in tokens a second, each of several measured ones."""

    prompt_rates: tuple[float, ...]
    decode_rates: tuple[float, ...]
    overheads: tuple[float, ...]  # share of a decoding step's time outside of the program


class TimedDevice:
    """The CPU, with a clock at the program's door."""

    name = "cpu"

    def __init__(self) -> None:
        self.seconds: list[float] = []  # of each launch

    def lower(self, *arguments: Any, **choices: Any) -> base.Program:
        """The CPU's own program, timed."""
        return _TimedProgram(base.open("cpu").lower(*arguments, **choices), self.seconds)


class _TimedProgram:
    def __init__(self, program: base.Program, seconds: list[float]) -> None:
        self._program, self._seconds = program, seconds

    def launch(self, batch: Any) -> base.Pending:
        """On a CPU the step has run when this returns."""
        began = time.perf_counter()
        pending = self._program.launch(batch)
        self._seconds.append(time.perf_counter() - began)
        return pending


def our_stream(model: str, vocab_size: int, num_times: int) -> OneStream:
    """Measured in turn, after one of each that does not count."""
    chance = random.Random(0)

    def text(num_tokens: int) -> list[int]:
        return [chance.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(num_tokens)]

    device = TimedDevice()
    prompt_rates, decode_rates, overheads = [], [], []
    with LLM(model, device=device, max_context=1024, num_blocks=512, max_rows=16) as llm:
        for _ in range(1 + num_times):
            (answer,) = llm.generate([text(PROMPT)], _greedy(1))
            prompt_rates.append(PROMPT / answer.usage.first_token_seconds)
            (answer,) = llm.generate([text(BEFORE)], _greedy(OUT))
            decode_rates.append(answer.usage.tokens_per_second)
            seconds = answer.usage.seconds - answer.usage.first_token_seconds
            overheads.append(1 - sum(device.seconds[1 - OUT :]) / seconds)
    return OneStream(tuple(prompt_rates[1:]), tuple(decode_rates[1:]), tuple(overheads[1:]))


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
