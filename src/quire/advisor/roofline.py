"""How long a step takes on a device: the longer of reading and multiplying, first for the weights, then for attention.

    seconds = max(weights / bandwidth, tokens × operations / arithmetic)
            + max(KV read / bandwidth, attention / arithmetic) + what every step costs

Reading the weights is shared by all tokens of a step, which is why batches pay; KV is each request's own, save for the
blocks at the head of their tables that several rows share, which are read once.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.advisor.hardware import Hardware
from quire.advisor.shape import Shape

FREE_SHARE = 0.9  # of a device's memory that an engine may use
NO_WORK = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes."""

    num_tokens: int
    read_context: int  # tokens whose KV is read, each as often as it is
    attended: int  # sum over the step's tokens of the tokens that each attends to


@dataclass(frozen=True, slots=True)
class Roofline:
    """One model on one device."""

    shape: Shape
    hardware: Hardware

    @property
    def _read_rate(self) -> float:
        return self.hardware.bandwidth * self.hardware.reach.bandwidth

    @property
    def _rate(self) -> float:
        return self.hardware.operations(self.shape.arithmetic) * self.hardware.reach.arithmetic

    def seconds(self, work: Work) -> float:
        """Of a step."""
        if not work.num_tokens:
            return NO_WORK
        shape = self.shape
        weights = max(shape.weight_bytes / self._read_rate, work.num_tokens * shape.token_operations / self._rate)
        attention_rate = self.hardware.operations("bf16") * self.hardware.reach.arithmetic
        attention = max(
            work.read_context * shape.kv_token_bytes / self._read_rate,
            work.attended * shape.attention_operations / attention_rate,
        )
        return weights + attention + self.hardware.reach.step_seconds

    def decode(self, rows: int, context: float) -> Work:
        """A step that gives so many streams, with so much context each, one token."""
        read = round(rows * context)
        return Work(rows, read, read)

    def prompt(self, num_tokens: int, start: int = 0) -> Work:
        """A step of a prompt's tokens after `start` that are there."""
        return Work(num_tokens, start + num_tokens, num_tokens * start + num_tokens * (num_tokens + 1) // 2)

    def decode_rate(self, rows: int, context: float) -> float:
        """Tokens a second of so many streams together."""
        return rows / self.seconds(self.decode(rows, context))

    def kv_bytes(self) -> float:
        """Memory that is left for KV; less than none if the model does not fit."""
        return self.hardware.memory_bytes * FREE_SHARE - self.shape.memory_besides_kv(self.hardware.memory_kind)

    def num_blocks(self, block_tokens: int) -> int:
        """Blocks of KV that fit."""
        return max(0, int(self.kv_bytes() // (self.shape.kv_token_bytes * block_tokens)))
