"""`embed`, `score` and `classify` of AsyncLLM."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from quire.engine.vector_calls import Embedding, PairScore, TextClasses, VectorCalls


class AsyncVectorCalls:
    """The calls of `VectorCalls` for asyncio. Each runs in a thread, so encoding and waiting do not block the loop."""

    _model: Any  # HasVectors

    async def embed(
        self,
        texts: Any,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
    ) -> list[Embedding]:
        """Return a vector for each text. The arguments are those of `LLM.embed`."""
        options = {"dimensions": dimensions, "normalize": normalize, "prompt_name": prompt_name, "truncate": truncate}
        return await asyncio.to_thread(VectorCalls.embed, cast(VectorCalls, self), texts, **options)  # type: ignore[arg-type]

    async def score(
        self, first: Any, second: Any, *, instruction: str | None = None, truncate: bool = False
    ) -> list[PairScore]:
        """Return a score for each pair. The arguments are those of `LLM.score`."""
        call = partial(VectorCalls.score, cast(VectorCalls, self), instruction=instruction, truncate=truncate)
        return await asyncio.to_thread(call, first, second)

    async def classify(self, texts: Any, *, truncate: bool = False) -> list[TextClasses]:
        """Return the probability of each class for each text."""
        return await asyncio.to_thread(VectorCalls.classify, cast(VectorCalls, self), texts, truncate=truncate)
