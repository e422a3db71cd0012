"""Ollama's embeddings: /api/embed, and /api/embeddings, which is older. Vectors have length 1."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.serve.dialects.body import DOTS, read_body
from quire.serve.dialects.contract import DecodedVectors, Reply, RequestLimits
from quire.serve.dialects.ollama.body import Loose, Name
from quire.types.chat import Terms
from quire.types.duration import seconds_of
from quire.types.errors import InvalidRequest
from quire.types.kinds import RequestKind
from quire.types.vectors import WHOLE_MODEL, VectorAnswer, VectorRequest

encode_json = msgspec.json.Encoder().encode


class EmbedBody(Loose, kw_only=True):
    """POST /api/embed"""

    model: Name
    input: str | list[str] = ""
    truncate: bool | None = None  # true by default: cut texts that are longer than the model reads
    dimensions: int | None = None
    keep_alive: str | float | None = None
    options: dict[str, Any] | None = None


class OldEmbedBody(Loose, kw_only=True):
    """POST /api/embeddings"""

    model: Name
    prompt: str = ""
    keep_alive: str | float | None = None
    options: dict[str, Any] | None = None


def decode_embed(body: bytes, limits: RequestLimits) -> DecodedVectors:
    """Decode texts to embed. None at all loads the model."""
    given = read_body(body, EmbedBody, spelling=DOTS)
    texts = (given.input,) if isinstance(given.input, str) else tuple(given.input)
    if len(texts) > limits.max_prompts:
        raise InvalidRequest(f"input: has {len(texts)} texts; at most {limits.max_prompts} are allowed", field="input")
    ask = VectorRequest(
        given.model,
        RequestKind.EMBED,
        tuple(text for text in texts if text) if texts == ("",) else texts,
        dimensions=given.dimensions or None,
        normalize=True,
        truncate=None if given.truncate is False else WHOLE_MODEL,
        terms=_terms(given),
    )
    return DecodedVectors(ask, _encode_embed)


def decode_old_embed(body: bytes, limits: RequestLimits) -> DecodedVectors:
    """Decode one text to embed."""
    given = read_body(body, OldEmbedBody, spelling=DOTS)
    texts = (given.prompt,) if given.prompt else ()
    ask = VectorRequest(
        given.model,
        RequestKind.EMBED,
        texts,
        normalize=True,
        truncate=WHOLE_MODEL,
        fields=("prompt", ""),
        terms=_terms(given),
    )
    return DecodedVectors(ask, _encode_old_embed)


def _encode_embed(reply: Reply, answer: VectorAnswer) -> bytes:
    seconds = {"total_duration": answer.seconds, "load_duration": answer.load_seconds}
    nanoseconds = {name: round(value * 1e9) for name, value in seconds.items()}
    vectors = {"model": reply.model, "embeddings": [row.tolist() for row in answer.vectors]}
    return encode_json(vectors | nanoseconds | {"prompt_eval_count": sum(answer.num_tokens)})


def _encode_old_embed(reply: Reply, answer: VectorAnswer) -> bytes:
    return encode_json({"embedding": answer.vectors[0].tolist() if answer.vectors else []})


def _terms(given: EmbedBody | OldEmbedBody) -> Terms:
    return Terms(keep_alive=None if given.keep_alive is None else seconds_of(given.keep_alive, "keep_alive"))
