"""Requests whose answers are vectors or scores, and these answers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from quire.types.chat import Terms
from quire.types.kinds import RequestKind

TextOrTokens = str | tuple[int, ...]
WHOLE_MODEL = -1  # as the number of tokens to truncate to: what the model reads


@dataclass(frozen=True, slots=True)
class VectorRequest:
    """Embed texts, classify them, or score pairs of them."""

    model: str
    kind: RequestKind
    texts: tuple[TextOrTokens, ...]  # of pairs, the first of each: or one, which is that of all pairs
    others: tuple[TextOrTokens, ...] = ()  # of pairs, the second of each
    dimensions: int | None = None  # the first numbers of each vector; None: all
    normalize: bool | None = None  # to length 1; None: as the model's files say
    prompt_name: str | None = None  # of the model's prompts, to put before each text
    prompt: str | None = None  # to put before each text
    truncate: int | None = None  # to this many tokens, or to WHOLE_MODEL; None: a text that is too long is an error
    max_second: int | None = None  # tokens of each second text: longer ones are cut; None: all of them
    fields: tuple[str, str] = ("input", "input")  # of the client: what errors about texts and about the others name
    raw: bool = False  # scores and classes as the model computes them, not as probabilities
    terms: Terms = field(default_factory=Terms)


class VectorAnswer(NamedTuple):
    """The answer: a vector for each text, or a score for each pair, or the probabilities of each text's classes."""

    vectors: tuple[array[float], ...]  # float32; of scores, one number each
    num_tokens: tuple[int, ...]  # of each text or pair
    labels: tuple[str, ...] = ()  # names of the classes
    seconds: float = 0.0  # from the request to the answer, over HTTP
    load_seconds: float = 0.0  # of these, until the model was loaded
