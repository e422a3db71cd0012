"""The prompts of a single stream, the same for every engine."""

from __future__ import annotations

import random
from collections.abc import Iterator

from quire.bench.load.session import TokenIds

PROMPT_TOKENS = 512  # of the prompt rate
DECODE_PROMPT_TOKENS, DECODE_TOKENS = 16, 128  # of the decode rate
FIRST_TOKEN_ID = 256


def single_prompts(vocab_size: int, num_repeats: int) -> Iterator[tuple[TokenIds, TokenIds]]:
    """Yield pairs of random token ids: a prompt for the prompt rate, and one for the decode rate."""
    rng = random.Random(0)
    for _ in range(num_repeats):
        prompt, decode_prompt = (
            [rng.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(num_tokens)]
            for num_tokens in (PROMPT_TOKENS, DECODE_PROMPT_TOKENS)
        )
        yield prompt, decode_prompt
