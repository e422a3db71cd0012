"""Many streams at once: the loads that every server is put under, ours and the peer's, in the same order.

    unique   256 tokens in, 64 out, nothing shared
    alone    one prompt as long as those of `cold`, nothing of it cached: what a first token costs without company
    cold     8 streams at once, 512 shared tokens that nobody has computed, and 32 of their own; in turn with `alone`
    shared   512 shared tokens, computed by now, and 32 of their own in, 64 out

Prompts are random words from one seed: the same for everyone.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median

from quire.bench.load import Load, Scenario, Serves, TokenIds, closed_loop
from quire.engine.async_llm import AsyncLLM
from quire.types.request import SamplingParams

UNIQUE, SHARED, OWN, OUT = 256, 512, 32, 64
COLD_STREAMS, COLD_OUT = 8, 16
MAX_CONTEXT = 1024  # of a stream


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    num_streams: int = 32
    num_requests: int = 64
    num_cold: int = 9  # pairs of `alone` and `cold`, each with new prompts


@dataclass(frozen=True, slots=True)
class Seen:
    """What clients saw of one server."""

    unique: Load
    alone_seconds: tuple[float, ...]  # to the first token; in both the same place is the same pair
    cold_seconds: tuple[float, ...]  # to the first token, 99th percentile
    shared: Load

    @property
    def cold_ratio(self) -> float:
        """What company costs: the median of the pairs, each measured within seconds on one machine."""
        return median(cold / alone for cold, alone in zip(self.cold_seconds, self.alone_seconds, strict=True))


async def put_under_load(server: Serves, words: TokenIds, scale: Scale) -> Seen:
    """All loads, one after the other."""
    chance = random.Random(0)

    def text(num_tokens: int) -> list[int]:
        return chance.choices(words, k=num_tokens)

    def one(prompt: TokenIds, max_tokens: int) -> Scenario:
        return Scenario((prompt,), 1, max_tokens)

    await closed_loop(server, one(text(OWN), OUT))  # whatever is done once, is done
    unique_prompts = tuple(text(UNIQUE) for _ in range(scale.num_requests))
    unique = await closed_loop(server, Scenario(unique_prompts, scale.num_streams, OUT))
    alone, cold, prefix = [], [], text(SHARED)
    for _ in range(scale.num_cold):
        alone.append(await closed_loop(server, one(text(SHARED + OWN), 1)))
        prefix = text(SHARED)
        prompts = tuple(prefix + text(OWN) for _ in range(COLD_STREAMS))
        cold.append(await closed_loop(server, Scenario(prompts, COLD_STREAMS, COLD_OUT)))
    shared_prompts = tuple(prefix + text(OWN) for _ in range(scale.num_requests))
    shared = await closed_loop(server, Scenario(shared_prompts, scale.num_streams, OUT))
    return Seen(
        unique=unique,
        alone_seconds=tuple(load.first_token.p50 for load in alone),
        cold_seconds=tuple(load.first_token.p99 for load in cold),
        shared=shared,
    )


class InProcess:
    """Our engine, in a thread of this process."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def stream(self, prompt: TokenIds, max_tokens: int) -> AsyncIterator[TokenIds]:
        """Tokens out of the deltas of text."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        async with aclosing(self._llm.stream(prompt, sampling)) as deltas:
            async for delta in deltas:
                yield delta.tokens


async def our_streams(model: str, words: tuple[int, ...], scale: Scale) -> Seen:
    """Our engine under load. As many blocks as the streams can use, and some for what is shared."""
    blocks = scale.num_streams * (UNIQUE + OUT) // 16
    settings = {"max_context": MAX_CONTEXT, "num_blocks": blocks + blocks // 8, "max_rows": max(scale.num_streams, 16)}
    async with await AsyncLLM.open(model, in_process=True, **settings) as llm:
        return await put_under_load(InProcess(llm), words, scale)
