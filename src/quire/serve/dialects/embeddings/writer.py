"""Answers with vectors, scores and classes as JSON."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from quire.serve.dialects.contract import Reply
from quire.types.errors import QuireError
from quire.types.vectors import VectorAnswer

encode_json = msgspec.json.Encoder().encode


def vectors_error(error: QuireError) -> bytes:
    """Encode an error in OpenAI's form."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    param = getattr(error, "field", None)
    return encode_json({"error": {"message": error.public, "type": kind, "param": param, "code": error.code}})


def embeddings_json(reply: Reply, answer: VectorAnswer, *, as_base64: bool) -> bytes:
    """Encode OpenAI's list of embeddings."""
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(row) if as_base64 else row.tolist()}
        for index, row in enumerate(answer.vectors)
    ]
    return encode_json({"object": "list", "data": data, "model": reply.model, "usage": _usage(answer)})


def pooling_json(reply: Reply, answer: VectorAnswer, *, as_base64: bool) -> bytes:
    """Encode vLLM's list of vectors."""
    data = [
        {"index": index, "object": "pooling", "data": _base64(row) if as_base64 else row.tolist()}
        for index, row in enumerate(answer.vectors)
    ]
    return encode_json(_head(reply, "pool", data, answer))


def scores_json(reply: Reply, answer: VectorAnswer) -> bytes:
    """Encode vLLM's list of scores."""
    data = [{"index": index, "object": "score", "score": row[0]} for index, row in enumerate(answer.vectors)]
    return encode_json(_head(reply, "score", data, answer))


def classes_json(reply: Reply, answer: VectorAnswer) -> bytes:
    """Encode vLLM's list of classes."""
    data = []
    for index, row in enumerate(answer.vectors):
        best = max(range(len(row)), key=row.__getitem__)
        label = answer.labels[best] if best < len(answer.labels) else None
        data.append({"index": index, "label": label, "probs": row.tolist(), "num_classes": len(row)})
    return encode_json(_head(reply, "classify", data, answer))


def ranking_json(reply: Reply, answer: VectorAnswer, texts: Sequence[str], top: int, *, shows_texts: bool) -> bytes:
    """Encode Cohere's and Jina's list of results, best first."""
    results = []
    for index, score in _ranked(answer)[:top]:
        document = {"document": {"text": texts[index]}} if shows_texts else {}
        results.append({"index": index, "relevance_score": score} | document)
    total = sum(answer.num_tokens)
    usage, meta = {"total_tokens": total, "prompt_tokens": total}, {"tokens": {"input_tokens": total}}
    return encode_json(
        {"id": f"rerank-{reply.id}", "model": reply.model, "usage": usage, "results": results, "meta": meta}
    )


def tei_ranking_json(reply: Reply, answer: VectorAnswer, texts: Sequence[str], *, shows_texts: bool) -> bytes:
    """Encode TEI's list of results, best first."""
    ranked = _ranked(answer)
    return encode_json(
        [{"index": index, "score": score} | ({"text": texts[index]} if shows_texts else {}) for index, score in ranked]
    )


def tei_vectors_json(reply: Reply, answer: VectorAnswer) -> bytes:
    """Encode TEI's list of vectors."""
    return encode_json([row.tolist() for row in answer.vectors])


def llama_cpp_vectors_json(reply: Reply, answer: VectorAnswer) -> bytes:
    """Encode llama.cpp's list of vectors: of each text, a list with one."""
    return encode_json([{"index": index, "embedding": [row.tolist()]} for index, row in enumerate(answer.vectors)])


def _ranked(answer: VectorAnswer) -> list[tuple[int, float]]:
    scores = [(index, row[0]) for index, row in enumerate(answer.vectors)]
    return sorted(scores, key=lambda each: -each[1])


def _head(reply: Reply, kind: str, data: list[dict[str, Any]], answer: VectorAnswer) -> dict[str, Any]:
    facts = {"id": f"{kind}-{reply.id}", "object": "list", "created": int(reply.created), "model": reply.model}
    return facts | {"data": data, "usage": _usage(answer)}


def _usage(answer: VectorAnswer) -> dict[str, int]:
    total = sum(answer.num_tokens)
    return {"prompt_tokens": total, "total_tokens": total}


def _base64(row: array[float]) -> str:
    """The numbers as little-endian float32."""
    if sys.byteorder == "big":
        row = array("f", row)
        row.byteswap()
    return base64.b64encode(row.tobytes()).decode()
