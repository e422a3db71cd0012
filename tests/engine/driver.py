"""A core driven by hand: submit requests, step until done, and read the record of every sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from quire.config import load as load_config
from quire.devices.base import Device
from quire.engine.core import EngineCore
from quire.engine.load import build_engine
from quire.engine.messages import (
    Cancelled,
    Failed,
    Inward,
    Outward,
    Submit,
)
from quire.models.config import CheckpointSource
from quire.types.errors import QuireError
from quire.types.output import Finished, Tokens
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import TokenLogprobs
from tests.models.toys import make_toy
from tests.runner.stand_in import CheckedDevice, CheckedProgram, device_of

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
class SampleRecord:
    """What was reported about one sample."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    error: QuireError | None = None
    num_hit: int = 0
    num_forced: int = 0

    @property
    def has_ended(self) -> bool:
        return self.finish is not None or self.error is not None


class Driver:
    """A toy model behind a core. `settings` are the project's own."""

    device_name: ClassVar[str] = "stand-in"

    def __init__(
        self,
        case: str = "llama",
        checkpoint: CheckpointSource | None = None,
        drafters: Sequence[Any] | None = None,
        draft: CheckpointSource | None = None,
        **settings: Any,
    ) -> None:
        self.toy = make_toy(case)
        self.device = CheckedDevice(self.opened())
        exact = {"kv_dtype": "f32", **EXACT.get(self.device_name, {})}
        config = load_config({"num_blocks": 60, "max_rows": 32, **exact, **settings}, environ={})
        opened = checkpoint or self.toy.checkpoint
        self.core: EngineCore = build_engine(opened, self.device, config, drafters=drafters, draft=draft).core
        self.core.checks_when_idle = True
        self.records: dict[tuple[str, int], SampleRecord] = {}
        self.messages: list[Outward] = []

    def opened(self) -> Device:
        """What the model is lowered for."""
        return device_of(self.device_name)

    @property
    def program(self) -> CheckedProgram:
        return self.device.programs[-1]  # a model that drafts is lowered first

    def handle(self, message: Inward) -> None:
        self.core.handle(message)
        self._record_messages()

    def submit(self, name: str, prompt: list[int], sampling: SamplingParams = GREEDY_64, **request: Any) -> None:
        for sample in range(sampling.n):
            self.records[name, sample] = SampleRecord()
        self.handle(Submit(GenerateRequest(name, tuple(prompt), sampling, **request)))

    def step(self) -> bool:
        did = self.core.step()
        self._record_messages()
        return did

    def run(self) -> Driver:
        """Until nothing is left to do. Every sample has ended then, and all invariants hold."""
        while self.step() or self.core.counters().num_compiling:
            pass
        self.core.check()
        assert all(record.has_ended for record in self.records.values())
        return self

    def tokens(self, name: str, sample: int = 0) -> list[int]:
        record = self.records[name, sample]
        assert record.error is None, record.error
        return record.tokens

    def _record_messages(self) -> None:
        for message in self.core.take():
            self.messages.append(message)
            if isinstance(message, Failed) and message.sample is None:
                for (name, _), record in self.records.items():
                    if name == message.request_id:
                        record.error = message.error
            elif isinstance(message, Tokens | Finished | Failed):
                assert message.sample is not None
                self._record(self.records[message.request_id, message.sample], message)

    def _record(self, record: SampleRecord, message: Tokens | Finished | Failed) -> None:
        assert not record.has_ended, "a message after the last one"
        if isinstance(message, Failed):
            record.error = message.error
            return
        record.tokens += message.tokens
        record.logprobs += message.logprobs
        record.num_hit = message.num_hit
        record.num_forced += message.num_forced
        if isinstance(message, Finished):
            record.finish = message.reason
        else:
            record.prompt_logprobs += message.prompt_logprobs

    def cancels(self) -> list[Cancelled]:
        return [message for message in self.messages if isinstance(message, Cancelled)]
