"""`embed`, `score` and `classify` of the Python API: many texts in, a vector, a score or a class for each out."""

from __future__ import annotations

import itertools
import queue
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.engine.chat_forms import items_of
from quire.engine.client import Client
from quire.engine.messages import Failed, News, Ready
from quire.engine.offline import QueueSlots
from quire.text.model_text import ModelText
from quire.text.vectors import EncodedText, VectorFacts, encode_texts, finish_vectors
from quire.types.kinds import RequestKind
from quire.types.output import Finished
from quire.types.request import GenerateRequest, SamplingParams
from quire.types.sampling_values import token_ids
from quire.types.vectors import WHOLE_MODEL, TextOrTokens, VectorAnswer, VectorRequest

Array = NDArray[Any]
NOTHING_SAMPLED = SamplingParams(temperature=0, max_tokens=1)
TEXTS = "a text, token ids, or a list of these"
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """The vector of one text."""

    vector: Array  # float32
    num_tokens: int

    @property
    def outputs(self) -> Embedding:
        """Itself, where vLLM has it."""
        return self

    @property
    def embedding(self) -> list[float]:
        """The vector as a list, under vLLM's name."""
        numbers: list[float] = self.vector.tolist()
        return numbers


@dataclass(frozen=True, slots=True)
class PairScore:
    """How well two texts belong together."""

    score: float
    num_tokens: int

    @property
    def outputs(self) -> PairScore:
        """Itself, where vLLM has it."""
        return self


@dataclass(frozen=True, slots=True)
class TextClasses:
    """The probability of each class."""

    label: str  # the most likely one
    probs: dict[str, float]
    num_tokens: int


class HasVectors(Protocol):
    """A loaded model."""

    client: Client
    slots: QueueSlots
    model_text: ModelText


class VectorCalls:
    """The calls of `LLM` whose answers are vectors or scores."""

    _model: Any  # HasVectors

    def embed(
        self,
        texts: Any,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        truncate: bool = False,
    ) -> list[Embedding]:
        """Return a vector for each text, as numpy arrays on `.vector`.

        `dimensions`: the first numbers alone, of models that were trained for it. `normalize`: to length 1; None: as
        the model's files say. `prompt_name`: of the model's prompts, such as query or document. `truncate`: cut texts
        that are longer than the model reads.
        """
        options = {"dimensions": dimensions, "normalize": normalize, "prompt_name": prompt_name}
        ask = VectorRequest("", RequestKind.EMBED, _texts("texts", texts), **options)  # type: ignore[arg-type]
        answer = answer_vectors(self._model, _truncated(ask, truncate))
        return [Embedding(np.frombuffer(row, np.float32), n) for row, n in zip(*answer[:2], strict=True)]

    def score(
        self, first: Any, second: Any, *, instruction: str | None = None, truncate: bool = False
    ) -> list[PairScore]:
        """Return a score for each pair: one text with each of `second`, or the pairs of two lists of equal length.

        `instruction`: the criterion for documents, for models such as Qwen3-Reranker; None: the model's own.
        """
        texts = _texts("first", first), _texts("second", second)
        ask = VectorRequest("", RequestKind.SCORE, *texts, prompt=instruction)
        answer = answer_vectors(self._model, _truncated(ask, truncate))
        return [PairScore(float(row[0]), count) for row, count in zip(*answer[:2], strict=True)]

    def classify(self, texts: Any, *, truncate: bool = False) -> list[TextClasses]:
        """Return the probability of each class for each text."""
        ask = VectorRequest("", RequestKind.CLASSIFY, _texts("texts", texts))
        answer = answer_vectors(self._model, _truncated(ask, truncate))
        found = []
        for row, count in zip(answer.vectors, answer.num_tokens, strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            found.append(TextClasses(answer.labels[best], dict(zip(answer.labels, row, strict=True)), count))
        return found


def answer_vectors(model: HasVectors, ask: VectorRequest) -> VectorAnswer:
    """Answer a request with all of its texts at once. If one fails, its error is raised, the others are cancelled."""
    encoded = encode_texts(ask, model.model_text, _facts(model.client.ready))
    numbers = _compute(model, [_request(each) for each in encoded])
    return finish_vectors(ask, numbers, encoded, model.model_text.embedding)


def _facts(ready: Ready) -> VectorFacts:
    """What the engine has said about its model."""
    return VectorFacts(ready.kinds, ready.max_context, ready.vector_size)


def _request(each: EncodedText) -> GenerateRequest:
    name = f"v{next(_NUMBERS)}"
    return GenerateRequest(name, each.tokens, NOTHING_SAMPLED, kind=each.kind, second_at=each.second_at)


def _compute(model: HasVectors, requests: list[GenerateRequest]) -> list[bytes]:
    """Run all requests, never more at once than the queue holds; return their vectors in order."""
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    found: dict[str, bytes] = {}
    waiting, num_live = iter(requests), 0
    live: set[str] = set()
    try:
        while len(found) < len(requests):
            while num_live + len(found) < len(requests) and model.slots.take(1, wait=not live):
                request = next(waiting)
                live.add(request.id)
                num_live += 1
                model.client.submit(request, news.put)
            each = news.get()
            if isinstance(each, Failed):
                raise each.error
            if isinstance(each, Finished):
                found[each.request_id] = each.vector
                live.discard(each.request_id)
                num_live -= 1
                model.slots.give(1)
    finally:
        for request_id in live:
            model.slots.give(1)
            model.client.cancel(request_id)
    return [found[request.id] for request in requests]


def _texts(name: str, given: Any) -> tuple[TextOrTokens, ...]:
    if isinstance(given, str):
        return (given,)
    items = items_of(name, given, TEXTS)
    if items and not isinstance(items[0], str) and not isinstance(items[0], Sequence | np.ndarray | array):
        return (token_ids(name, items),)
    return tuple(each if isinstance(each, str) else token_ids(name, items_of(name, each, TEXTS)) for each in items)


def _truncated(ask: VectorRequest, truncate: bool) -> VectorRequest:
    return replace(ask, truncate=WHOLE_MODEL) if truncate else ask
