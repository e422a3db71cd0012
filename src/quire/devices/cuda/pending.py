"""A launched step: its buffers on the host, and its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.devices.base import StepOutput
from quire.ops.batch import Batch, Draws

from .inputs import Inputs, StepSizes

Array = NDArray[Any]


class LaunchingProgram(Protocol):
    """The interface of a program for its pending steps."""

    def on_stream(self) -> Any: ...
    def send_back(self, pending: CudaPending) -> None: ...


@dataclass(slots=True, eq=False)
class Staging:
    """One step's buffers on the host, reused after the step has finished."""

    numbers: Tensor  # int32, pinned: the inputs
    tokens: Tensor  # int32, pinned: the sampled tokens
    began: Any  # torch.cuda.Event, or None on a CPU
    done: Any
    views: dict[StepSizes, Inputs] = field(default_factory=dict)  # of `numbers`, for steps that are captured

    @classmethod
    def make(cls, size: int, num_tokens: int, is_cuda: bool) -> Staging:
        numbers = torch.zeros(size, dtype=torch.int32, pin_memory=is_cuda)
        tokens = torch.zeros(num_tokens, dtype=torch.int32, pin_memory=is_cuda)
        began, done = (torch.cuda.Event(enable_timing=True) if is_cuda else None for _ in range(2))
        return cls(numbers, tokens, began, done)

    def seconds(self) -> float | None:
        """Wait for the step; return its device-busy seconds, from the end of the previous step if that came later."""
        if self.done is None:
            return None
        self.done.synchronize()
        return float(self.began.elapsed_time(self.done)) / 1e3


class HostLogits(NamedTuple):
    """The logits that the host samples from: a copy, as the next step may overwrite them. Allocated before the step."""

    copy: Tensor
    logits: Tensor | None = None  # of the step; None: there is nothing to copy
    at: Tensor | None = None  # int64, the rows to copy; None: the first ones

    @classmethod
    def of(cls, batch: Batch, logits: Tensor | None, vocab_size: int) -> HostLogits:
        """Allocate the copy for a step."""
        host_sampled = None if batch.draws is None else np.flatnonzero(batch.draws.rows < 0)
        if logits is None or (host_sampled is not None and not len(host_sampled)):
            return cls(torch.empty((0, vocab_size)))
        if host_sampled is None:
            return cls(logits.new_empty((len(batch.logits_at), vocab_size)), logits)
        at = torch.from_numpy(host_sampled).to(logits.device)
        return cls(logits.new_empty((len(host_sampled), vocab_size)), logits, at)

    def fill(self) -> None:
        """Copy the step's logits, after they are computed."""
        if self.logits is not None and self.at is not None:
            torch.index_select(self.logits, 0, self.at, out=self.copy)
        elif self.logits is not None:
            self.copy.copy_(self.logits[: len(self.copy)])


@dataclass(slots=True, eq=False)
class CudaPending:
    """A launched step."""

    program: LaunchingProgram
    staging: Staging
    num_logits: int
    draws: Draws | None
    logits: Tensor | None  # of entries that the host samples
    sample: Callable[[], None] | None  # to be called when the masks are there; None: nothing to do
    is_typical: bool = True  # False: the next step of its sizes will be faster, as its graph is captured then
    bits: Tensor | None = None  # int32 [masks, words] buffer of the masks
    hidden: Tensor | None = None  # [T, dim] rows for the host
    pooled: Tensor | None = None  # [P, dim] vectors or scores; None: the program computes none
    _output: StepOutput | None = None

    def mask(self, bits: Array) -> None:
        """Send the grammar masks and start sampling, which waits for them."""
        assert self.sample is not None and self.bits is not None
        with self.program.on_stream():
            self.bits.copy_(torch.from_numpy(np.ascontiguousarray(bits).view(np.int32)))
            self.sample()
            self.sample = None
            self.program.send_back(self)

    def result(self) -> StepOutput:
        """Wait for the step."""
        if self._output is None:
            seconds = self.staging.seconds()
            tokens = self.staging.tokens[: self.num_logits].numpy().copy() if self.draws is not None else None
            logits = None if self.logits is None else self.logits.cpu().numpy()
            hidden = None if self.hidden is None else self.hidden.float().cpu().numpy()
            pooled = None if self.pooled is None else self.pooled.float().cpu().numpy()
            self._output = StepOutput(
                logits, tokens=tokens, pooled=pooled, hidden=hidden, seconds=seconds, is_typical=self.is_typical
            )
            self.logits = self.hidden = self.pooled = None
        return self._output


def mask_buffer(draws: Draws | None, vocab_size: int, device: torch.device) -> Tensor:
    """Allocate the masks of a step [masks, words], uint32 as int32."""
    num_masks = 0 if draws is None else int(np.count_nonzero(draws.masked))
    return torch.empty((num_masks, -(-vocab_size // 32)), dtype=torch.int32, device=device)
