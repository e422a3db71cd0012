"""A closed loop of streaming clients, and what they saw. It knows nothing of who serves them.

Each of `num_streams` clients sends its next prompt as soon as its last answer is whole. Clients count tokens, not
pieces of text: a server may send several tokens at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from quire.types.errors import QuireError

TokenIds = Sequence[int]


class ShortAnswer(QuireError):
    """A server did not do all of the work that it was asked for."""

    code = "short_answer"


class Serves(Protocol):
    """Whoever answers: an engine in this process, or a server behind HTTP."""

    def stream(self, prompt: TokenIds, max_tokens: int) -> AsyncIterator[TokenIds]:
        """The answer's tokens as they come: greedy, and not ended by the model."""
        ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked, and by how many at once."""

    prompts: tuple[TokenIds, ...]
    num_streams: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many seconds, the middle and the end."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Between two measured ones, a line. Nothing measured is no time."""
        p50, p99 = np.percentile(seconds, (50, 99)) if len(seconds) else (0.0, 0.0)
        return cls(float(p50), float(p99))


@dataclass(frozen=True, slots=True)
class Load:
    """What all clients together saw."""

    num_tokens: int
    seconds: float  # from the first prompt to the last token
    first_token: Spread  # from a prompt to its first token
    gap: Spread  # between two arrivals of one answer

    @property
    def tokens_per_second(self) -> float:
        """Of output."""
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class _Answer:
    sent: float
    arrivals: tuple[float, ...]
    num_tokens: int


async def closed_loop(server: Serves, scenario: Scenario) -> Load:
    """Run a scenario to its end."""
    waiting = iter(scenario.prompts)
    began = time.perf_counter()
    clients = [_client(server, waiting, scenario.max_tokens) for _ in range(scenario.num_streams)]
    answers = [answer for each in await asyncio.gather(*clients) for answer in each]
    return Load(
        num_tokens=sum(answer.num_tokens for answer in answers),
        seconds=time.perf_counter() - began,
        first_token=Spread.of([answer.arrivals[0] - answer.sent for answer in answers]),
        gap=Spread.of([after - before for answer in answers for before, after in pairwise(answer.arrivals)]),
    )


async def _client(server: Serves, waiting: Iterator[TokenIds], max_tokens: int) -> list[_Answer]:
    """One client's answers. All take their prompts from one line."""
    return [await _ask(server, prompt, max_tokens) for prompt in waiting]


async def _ask(server: Serves, prompt: TokenIds, max_tokens: int) -> _Answer:
    sent, arrivals, num_tokens = time.perf_counter(), [], 0
    async for tokens in server.stream(prompt, max_tokens):
        if tokens:
            arrivals.append(time.perf_counter())
            num_tokens += len(tokens)
    if num_tokens != max_tokens:
        raise ShortAnswer(f"an answer has {num_tokens} tokens instead of {max_tokens}")
    return _Answer(sent, tuple(arrivals), num_tokens)
