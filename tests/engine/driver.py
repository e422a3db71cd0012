"""A core driven by hand: submit, step until done, and what became of every sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from quire.config import load as load_config
from quire.devices.base import Device
from quire.engine.core import EngineCore
from quire.engine.load import build
from quire.engine.messages import Cancelled, Failed, Inward, Outward, Submit
from quire.models.config import CheckpointSource
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import TokenLogprobs
from tests.models.toys import make_toy
from tests.runner.stand_in import CheckedProgram, checked, device_of

GREEDY_64 = SamplingParams(temperature=0.0, max_tokens=64)
EXACT: dict[str, dict[str, Any]] = {"cuda": {"dtype": "f32"}}  # what a device must be told to compute in float32


def expected(case: str, prompt: list[int], count: int = 64) -> list[int]:
    """Greedy tokens by transformers."""
    return list(_expected(case, tuple(prompt), count))


@cache
def _expected(case: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
    import torch

    torch.set_num_threads(1)  # a toy is too small to share out
    return tuple(make_toy(case).expected_greedy(prompt, count))


@dataclass
class Told:
    """What was said about one sample."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    error: QuireError | None = None
    num_hit: int = 0
    num_forced: int = 0

    @property
    def is_over(self) -> bool:
        return self.finish is not None or self.error is not None


class Driver:
    """A toy model behind a core. `settings` are the project's own."""

    device_name: ClassVar[str] = "stand-in"

    def __init__(self, case: str = "llama", checkpoint: CheckpointSource | None = None, **settings: Any) -> None:
        self.toy = make_toy(case)
        self.device = checked(self.opened())
        exact = {"kv_dtype": "f32", **EXACT.get(self.device_name, {})}
        config = load_config({"num_blocks": 60, "max_rows": 32, **exact, **settings}, environ={})
        self.core: EngineCore = build(checkpoint or self.toy.checkpoint, self.device, config).core
        self.core.checks = True
        self.told: dict[tuple[str, int], Told] = {}
        self.said: list[Outward] = []

    def opened(self) -> Device:
        """What the model is lowered for."""
        return device_of(self.device_name)

    @property
    def program(self) -> CheckedProgram:
        return self.device.programs[0]

    def say(self, message: Inward) -> None:
        self.core.handle(message)
        self._hear()

    def submit(self, name: str, prompt: list[int], sampling: SamplingParams = GREEDY_64, **request: Any) -> None:
        for sample in range(sampling.n):
            self.told[name, sample] = Told()
        self.say(Submit(GenerateRequest(name, tuple(prompt), sampling, **request)))

    def step(self) -> bool:
        did = self.core.step()
        self._hear()
        return did

    def run(self) -> Driver:
        """Until nothing is left to do. Every sample has ended then, and all invariants hold."""
        while self.step() or self.core.counters().num_compiling:
            pass
        self.core.prove()
        assert all(told.is_over for told in self.told.values())
        return self

    def tokens(self, name: str, sample: int = 0) -> list[int]:
        told = self.told[name, sample]
        assert told.error is None, told.error
        return told.tokens

    def _hear(self) -> None:
        for message in self.core.take():
            self.said.append(message)
            if isinstance(message, Failed) and message.sample is None:
                for (name, _), told in self.told.items():
                    if name == message.request_id:
                        told.error = message.error
            elif isinstance(message, Tokens | Finished | Failed):
                assert message.sample is not None
                self._hear_of(self.told[message.request_id, message.sample], message)

    def _hear_of(self, told: Told, message: Tokens | Finished | Failed) -> None:
        assert not told.is_over, "news after the ending"
        if isinstance(message, Failed):
            told.error = message.error
            return
        told.tokens += message.tokens
        told.logprobs += message.logprobs
        told.num_hit = message.num_hit
        told.num_forced += message.num_forced
        if isinstance(message, Finished):
            told.finish = message.reason
        else:
            told.prompt_logprobs += message.prompt_logprobs

    def cancels(self) -> list[Cancelled]:
        return [message for message in self.said if isinstance(message, Cancelled)]
