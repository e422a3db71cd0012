"""Seconds of a step on a device: the longer of memory reads and arithmetic, for the weights and for attention.

    seconds = max(weights / bandwidth, tokens × operations / arithmetic)
            + max(KV read / bandwidth, attention / arithmetic) + fixed cost of a step

The weights are read once per step for all tokens. KV is read per request, except for blocks of a prefix that several
rows share, which are read once. Layers with a window read no more than its tokens. Recurrent layers read and write one
state per request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.advisor.hardware import Hardware
from quire.advisor.model_shape import ModelShape
from quire.config import Config
from quire.runner.cache_plan import MOST_NODES, blocks_within

USABLE_SHARE = 0.9  # of a device's memory


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step reads and computes."""

    num_tokens: int
    read_context: int  # tokens whose KV is read; a token read twice counts twice
    attended: int  # sum over the step's tokens of the number of tokens each attends to
    num_rows: int = 1


def decode_work(rows: float, context: float, tokens_per_row: int = 1) -> StepWork:
    """Return the work of a decode step: `rows` streams with `context` tokens each; more tokens per row with drafts."""
    read = round(rows * context)
    return StepWork(round(rows * tokens_per_row), read, read * tokens_per_row, round(rows))


def prompt_work(num_tokens: int, start: int = 0) -> StepWork:
    """Return the work of computing `num_tokens` of a prompt after `start` cached ones."""
    return StepWork(num_tokens, start + num_tokens, num_tokens * start + num_tokens * (num_tokens + 1) // 2)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The speed and memory of one model on one device."""

    shape: ModelShape
    hardware: Hardware

    @property
    def _read_rate(self) -> float:
        return self.hardware.bandwidth * self.hardware.efficiency.bandwidth

    @property
    def _operation_rate(self) -> float:
        return self.hardware.operations(self.shape.arithmetic) * self.hardware.efficiency.arithmetic

    def seconds(self, work: StepWork) -> float:
        """Return the seconds of a step."""
        if not work.num_tokens:
            return 0.0
        shape = self.shape
        weights = max(
            shape.weight_bytes / self._read_rate, work.num_tokens * shape.token_operations / self._operation_rate
        )
        attention_rate = self.hardware.operations("bf16") * self.hardware.efficiency.arithmetic
        attention = max(
            shape.read_bytes(work.read_context, work.num_rows) / self._read_rate,
            shape.attention_operations(work.attended, work.num_tokens) / attention_rate,
        )
        return weights + attention + self.hardware.efficiency.step_seconds

    def decode_rate(self, rows: int, context: float) -> float:
        """Return the tokens per second of `rows` streams together."""
        return rows / self.seconds(decode_work(rows, context))

    def kv_bytes(self) -> float:
        """Return the memory left for KV; negative if the model does not fit."""
        return self.hardware.memory_bytes * USABLE_SHARE - self.shape.memory_besides_kv(self.hardware.memory_kind)

    def num_blocks(self, block_tokens: int) -> int:
        """Return the number of KV blocks that fit, with the window groups and states that an engine has beside them."""
        config, sizes = Config(), self.shape.cache_bytes(block_tokens)
        config = replace(config, cache=replace(config.cache, block_tokens=block_tokens))
        most = int(self.kv_bytes() // sizes.tokens) if sizes.tokens else MOST_NODES
        return blocks_within(sizes, config, int(self.kv_bytes()), max(0, most))
