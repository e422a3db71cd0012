"""A step that was launched: its buffers on the host, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices.base import StepOutput
from quire.ops.batch import Draws

Array = NDArray[Any]


class Program(Protocol):
    """What a pending step needs of the program that launched it."""

    def on_stream(self) -> Any: ...
    def send_back(self, pending: CudaPending) -> None: ...


@dataclass(slots=True, eq=False)
class Staging:
    """One step's buffers on the host. Used again when the step is surely over."""

    numbers: Tensor  # int32, pinned
    tokens: Tensor  # int32, pinned: what comes back
    began: Any  # torch.cuda.Event, or None on a CPU
    done: Any

    @classmethod
    def make(cls, size: int, num_tokens: int, is_cuda: bool) -> Staging:
        numbers = torch.zeros(size, dtype=torch.int32, pin_memory=is_cuda)
        tokens = torch.zeros(num_tokens, dtype=torch.int32, pin_memory=is_cuda)
        events = (torch.cuda.Event(enable_timing=True) if is_cuda else None for _ in range(2))
        return cls(numbers, tokens, *events)

    def seconds(self) -> float | None:
        """That the device was at it, once it is done: from the end of the step before, if it had to wait for that."""
        if self.done is None:
            return None
        self.done.synchronize()
        return float(self.began.elapsed_time(self.done)) / 1e3


class ForHost(NamedTuple):
    """Logits that the host chooses from: a copy, since the next step may write over them. Its room is had before."""

    room: Tensor
    logits: Tensor | None = None  # of the step; None: there is nothing to copy
    at: Tensor | None = None  # int64, which of them; None: the first ones

    def fill(self) -> None:
        """When the step's logits are there."""
        if self.logits is not None and self.at is not None:
            torch.index_select(self.logits, 0, self.at, out=self.room)
        elif self.logits is not None:
            self.room.copy_(self.logits[: len(self.room)])


@dataclass(slots=True, eq=False)
class CudaPending:
    """A step on its way."""

    program: Program
    staging: Staging
    num_logits: int
    draws: Draws | None
    logits: Tensor | None  # of entries that the host chooses from
    choose: Callable[[], None] | None  # waits for masks
    bits: Tensor | None = None  # int32 [masks, words] room for them
    _output: StepOutput | None = None

    def mask(self, bits: Array) -> None:
        """Grammars' masks: choosing was waiting for them."""
        assert self.choose is not None and self.bits is not None
        with self.program.on_stream():
            self.bits.copy_(torch.from_numpy(np.ascontiguousarray(bits).view(np.int32)))
            self.choose()
            self.choose = None
            self.program.send_back(self)

    def result(self) -> StepOutput:
        """Wait for the step."""
        if self._output is None:
            seconds = self.staging.seconds()
            tokens = self.staging.tokens[: self.num_logits].numpy().copy() if self.draws is not None else None
            logits = None if self.logits is None else self.logits.cpu().numpy()
            self._output = StepOutput(logits, tokens=tokens, seconds=seconds)
            self.logits = None
        return self._output
