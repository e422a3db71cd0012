"""Which experts are in the GPU's memory and which in the host's: how many, which ones to exchange, and the speed.

Every layer has the same share of its experts in host memory. Experts of a layer that are read more often take the
places of those that are read less: an exchange moves both, so neither memory grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

LEAST_GAIN = 4  # reads more than the other expert's: an exchange itself moves as many bytes as two reads


class HostChoice(NamedTuple):
    """The setting experts_on_host."""

    num_bytes: int | None = None  # None: as few as needed

    def share(self, expert_bytes: int, room: int | None) -> float:
        """Return the share of all experts, of so many bytes, to keep in host memory.

        `room`: what the GPU has for them; None: unknown, and enough.
        """
        if self.num_bytes is None:
            missing = 0 if room is None else expert_bytes - max(room, 0)
        else:
            missing = self.num_bytes
        return min(max(missing, 0) / expert_bytes, 1.0) if expert_bytes else 0.0


def num_on_host(share: float, num_experts: int) -> int:
    """Return how many experts of a layer are in host memory: the share, rounded up."""
    return min(num_experts, ceil(share * num_experts - 1e-9))


class ExpertPair(NamedTuple):
    """Two experts of a layer that exchange their places."""

    to_gpu: int
    to_host: int


def exchanges(reads: Sequence[float], is_on_gpu: Sequence[bool], most: int) -> list[ExpertPair]:
    """Return the most useful exchanges of a layer, at most so many: the most read expert in host memory with the least
    read one on the GPU, and so on. Of equal ones, the smaller index comes first."""
    hot = sorted((e for e, on_gpu in enumerate(is_on_gpu) if not on_gpu), key=lambda e: (-reads[e], e))
    cold = sorted((e for e, on_gpu in enumerate(is_on_gpu) if on_gpu), key=lambda e: (reads[e], e))
    pairs = [ExpertPair(*pair) for pair in zip(hot, cold, strict=False)]
    return [pair for pair in pairs[:most] if reads[pair.to_gpu] - reads[pair.to_host] >= LEAST_GAIN]


class Bandwidths(NamedTuple):
    """Bytes a second that the GPU reads."""

    gpu: float
    host: float


class TokenBytes(NamedTuple):
    """Bytes that the GPU reads for a token that is alone in its step, if all experts are equally likely."""

    gpu: float
    host: float

    def tokens_per_second(self, bandwidths: Bandwidths) -> float:
        """The most tokens a second of one request, as far as reading weights limits it."""
        return 1.0 / (self.gpu / bandwidths.gpu + self.host / bandwidths.host)
