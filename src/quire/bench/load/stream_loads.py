"""The fixed loads of `quire bench cpu`: many streams at once, the same for our engine and the peer, in this order.

    unique   256 tokens in, 64 out, nothing shared
    alone    one uncached prompt as long as those of `cold`: its time to the first token without other requests
    cold     8 streams at once, 512 shared uncached tokens and 32 of their own; alternates with `alone`
    shared   512 shared tokens, cached by now, and 32 of their own in, 64 out

Prompts are random words from one seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median

from quire.bench.load.closed_loop import PromptSet, closed_loop
from quire.bench.load.run_load import EngineClient
from quire.bench.load.session import TokenIds
from quire.bench.load.summary import Summary

UNIQUE_TOKENS, SHARED_TOKENS, OWN_TOKENS, OUTPUT_TOKENS = 256, 512, 32, 64
COLD_STREAMS, COLD_OUTPUT_TOKENS = 8, 16
MAX_CONTEXT = 1024  # of one stream


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """How much is measured."""

    num_streams: int = 32
    num_requests: int = 64
    num_cold: int = 9  # pairs of `alone` and `cold`, each with new prompts
    only_unique: bool = False  # the other loads are not measured


@dataclass(frozen=True, slots=True)
class StreamResults:
    """One engine under all loads, or under `unique` alone. The same index in the two tuples is the same pair."""

    unique: Summary
    alone_seconds: tuple[float, ...]  # to the first token
    cold_seconds: tuple[float, ...]  # to the first token, 99th percentile
    shared: Summary | None

    @property
    def cold_ratio(self) -> float | None:
        """Median over the pairs of `cold` to `alone`; the two of a pair are measured within seconds."""
        ratios = [cold / alone for cold, alone in zip(self.cold_seconds, self.alone_seconds, strict=True)]
        return median(ratios) if ratios else None


async def run_stream_loads(client: EngineClient, words: TokenIds, sizes: StreamSizes) -> StreamResults:
    """Run all loads, one after the other. Prompts are drawn from the token ids `words`."""
    rng = random.Random(0)

    def random_prompt(num_tokens: int) -> list[int]:
        return rng.choices(words, k=num_tokens)

    async def run_one(prompt: TokenIds, max_tokens: int) -> Summary:
        return await closed_loop(client, PromptSet((prompt,), 1, max_tokens))

    await run_one(random_prompt(OWN_TOKENS), OUTPUT_TOKENS)  # warm-up
    unique_prompts = [random_prompt(UNIQUE_TOKENS) for _ in range(sizes.num_requests)]
    unique = await closed_loop(client, PromptSet(unique_prompts, sizes.num_streams, OUTPUT_TOKENS))
    if sizes.only_unique:
        return StreamResults(unique, (), (), None)
    alone, cold, prefix = [], [], random_prompt(SHARED_TOKENS)
    for _ in range(sizes.num_cold):
        alone.append(await run_one(random_prompt(SHARED_TOKENS + OWN_TOKENS), 1))
        prefix = random_prompt(SHARED_TOKENS)
        prompts = [prefix + random_prompt(OWN_TOKENS) for _ in range(COLD_STREAMS)]
        cold.append(await closed_loop(client, PromptSet(prompts, COLD_STREAMS, COLD_OUTPUT_TOKENS)))
    shared_prompts = [prefix + random_prompt(OWN_TOKENS) for _ in range(sizes.num_requests)]
    shared = await closed_loop(client, PromptSet(shared_prompts, sizes.num_streams, OUTPUT_TOKENS))
    return StreamResults(
        unique=unique,
        alone_seconds=tuple(summary.first_token.p50 for summary in alone),
        cold_seconds=tuple(summary.first_token.p99 for summary in cold),
        shared=shared,
    )
