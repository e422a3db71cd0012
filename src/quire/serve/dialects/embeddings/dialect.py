"""Embeddings (OpenAI, vLLM, TEI, llama.cpp), rerankers (Cohere, Jina, vLLM, TEI), scores and classes (vLLM)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from quire.serve.dialects.body import Schemas, read_body
from quire.serve.dialects.contract import DecodedVectors, Dialect, RequestLimits, VectorEndpoint
from quire.serve.dialects.embeddings import writer
from quire.serve.dialects.embeddings.body import (
    REFUSED,
    ClassifyBody,
    EmbeddingsBody,
    LlamaCppEmbedBody,
    RerankBody,
    ScoreBody,
    TeiEmbedBody,
    VectorBody,
)
from quire.types.chat import Terms
from quire.types.errors import InvalidRequest
from quire.types.kinds import RequestKind
from quire.types.vectors import WHOLE_MODEL, TextOrTokens, VectorRequest

EMBEDDINGS, POOLING, CLASSIFY = "/v1/embeddings", "/pooling", "/classify"
SCORES = ("/score", "/v1/score")
RERANKS = ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")  # the last two: llama.cpp
TEI_EMBED, LLAMA_CPP = "/embed", ("/embedding", "/embeddings")
NOT_TEI = ("top_n", "return_documents", "max_tokens_per_doc")  # fields of a ranking
ONLY_TEI = ("return_text", "truncation_direction")


def decode_embeddings(body: bytes, limits: RequestLimits, *, is_pooling: bool = False) -> DecodedVectors:
    """Decode texts or token ids to embed."""
    given = read_body(body, EmbeddingsBody, REFUSED)
    if given.prompt_name is not None and given.input_type not in (None, given.prompt_name):
        raise InvalidRequest("prompt_name and input_type differ: give one of them.", field="input_type")
    ask = VectorRequest(
        given.model or "",
        RequestKind.EMBED,
        read_inputs(given.input, limits, "input"),
        dimensions=given.dimensions,
        normalize=given.normalize,
        prompt_name=given.prompt_name or given.input_type,
        truncate=given.truncate_prompt_tokens,
        terms=_terms(given),
    )
    encode = writer.pooling_json if is_pooling else writer.embeddings_json
    return DecodedVectors(ask, partial(encode, as_base64=given.encoding_format == "base64"))


def decode_classify(body: bytes, limits: RequestLimits) -> DecodedVectors:
    """Decode texts to classify."""
    given = read_body(body, ClassifyBody, REFUSED)
    texts = read_inputs(given.input, limits, "input")
    ask = VectorRequest(
        given.model or "", RequestKind.CLASSIFY, texts, truncate=given.truncate_prompt_tokens, terms=_terms(given)
    )
    return DecodedVectors(ask, writer.classes_json)


def decode_score(body: bytes, limits: RequestLimits) -> DecodedVectors:
    """Decode pairs of texts."""
    given = read_body(body, ScoreBody, REFUSED)
    first_field, firsts = _either(("text_1", given.text_1), ("queries", given.queries))
    second_field, others = _either(("text_2", given.text_2), ("documents", given.documents))
    if len(firsts) not in (1, len(others)):
        raise InvalidRequest(
            f"{first_field} has {len(firsts)} texts and {second_field} {len(others)}: give one, or as many as in "
            f"{second_field}.",
            field=first_field,
        )
    _check_count(others, limits, second_field)
    ask = VectorRequest(
        given.model or "",
        RequestKind.SCORE,
        firsts,
        others,
        prompt=given.instruction,
        truncate=given.truncate_prompt_tokens,
        fields=(first_field, second_field),
        terms=_terms(given),
    )
    return DecodedVectors(ask, writer.scores_json)


def decode_rerank(body: bytes, limits: RequestLimits, *, shows: bool) -> DecodedVectors:
    """Decode a query and documents. `shows`: the answer has the documents, unless the request says otherwise."""
    given = read_body(body, RerankBody, REFUSED)
    if (given.documents is None) == (given.texts is None):
        raise InvalidRequest("Give documents, or texts in TEI's form.", field="documents")
    is_tei = given.documents is None
    listed, field = (given.texts, "texts") if is_tei else (given.documents, "documents")
    for name in NOT_TEI if is_tei else ONLY_TEI:
        if getattr(given, name) is not None:
            raise InvalidRequest(f"{name} does not go with {field}: it belongs to the other form.", field=name)
    texts = tuple(each if isinstance(each, str) else each.text for each in listed or ())
    _check_count(texts, limits, field)
    truncate = given.truncate_prompt_tokens
    if truncate is None and (given.truncate or given.max_tokens_per_doc):
        truncate = WHOLE_MODEL
    ask = VectorRequest(
        given.model or "",
        RequestKind.SCORE,
        (given.query,),
        texts,
        prompt=given.instruction,
        truncate=truncate,
        max_second=given.max_tokens_per_doc,
        fields=("query", field),
        raw=bool(given.raw_scores),
        terms=_terms(given),
    )
    if is_tei:
        return DecodedVectors(ask, partial(writer.tei_ranking_json, texts=texts, shows_texts=bool(given.return_text)))
    shown = shows if given.return_documents is None else given.return_documents
    top = given.top_n or len(texts)
    return DecodedVectors(ask, partial(writer.ranking_json, texts=texts, top=top, shows_texts=shown))


def decode_tei_embed(body: bytes, limits: RequestLimits) -> DecodedVectors:
    """Decode TEI's form of texts to embed."""
    given = read_body(body, TeiEmbedBody, {})
    ask = VectorRequest(
        given.model or "",
        RequestKind.EMBED,
        read_inputs(given.inputs, limits, "inputs"),
        dimensions=given.dimensions,
        normalize=given.normalize is not False,
        prompt_name=given.prompt_name,
        truncate=WHOLE_MODEL if given.truncate else None,
        fields=("inputs", ""),
    )
    return DecodedVectors(ask, writer.tei_vectors_json)


def decode_llama_cpp(body: bytes, limits: RequestLimits) -> DecodedVectors:
    """Decode llama.cpp's form of texts to embed."""
    given = read_body(body, LlamaCppEmbedBody, {})
    if (given.content is None) == (given.input is None):
        raise InvalidRequest("Give content: a text, token ids, or a list of these.", field="content")
    value, field = (given.input, "input") if given.content is None else (given.content, "content")
    texts, normalize = read_inputs(value, limits, field), given.embd_normalize != -1
    ask = VectorRequest(given.model or "", RequestKind.EMBED, texts, normalize=normalize, fields=(field, ""))
    return DecodedVectors(ask, writer.llama_cpp_vectors_json)


def read_inputs(given: Any, limits: RequestLimits, field: str) -> tuple[TextOrTokens, ...]:
    """Read one text or several, token ids of one or of several."""
    if isinstance(given, str):
        return (given,)
    kinds = {type(item) for item in given}
    if len(kinds) != 1 or [] in given:
        public = f"{field} must be a string, a list of strings, a list of token ids or a list of such lists; not empty."
        raise InvalidRequest(public, field=field)
    if kinds == {int}:
        return (tuple(given),)
    _check_count(given, limits, field)
    return tuple(item if isinstance(item, str) else tuple(item) for item in given)


def _check_count(texts: Sequence[Any], limits: RequestLimits, field: str) -> None:
    if not texts:
        raise InvalidRequest(f"{field} is empty: give at least one text.", field=field)
    if len(texts) > limits.max_prompts:
        raise InvalidRequest(f"{field} has {len(texts)} texts; at most {limits.max_prompts} are allowed.", field)


def _either(*named: tuple[str, str | list[str] | None]) -> tuple[str, tuple[str, ...]]:
    """The one of two names that was given, and the texts under it."""
    found = [(name, value) for name, value in named if value is not None]
    if len(found) != 1:
        raise InvalidRequest(f"Give {' or '.join(name for name, _ in named)}.", field=named[0][0])
    name, value = found[0]
    return name, (value,) if isinstance(value, str) else tuple(value)


def _terms(given: VectorBody) -> Terms:
    return Terms(id=given.request_id, priority=given.priority or 0, user=given.user or "")


_WITHOUT_TEXTS = ("/v2/rerank", "/reranking", "/v1/reranking")  # Cohere's second version, and llama.cpp
DIALECT = Dialect(
    name="embeddings",
    endpoints=(
        VectorEndpoint(EMBEDDINGS, decode_embeddings),
        VectorEndpoint(POOLING, partial(decode_embeddings, is_pooling=True)),
        VectorEndpoint(CLASSIFY, decode_classify),
        *(VectorEndpoint(path, decode_score) for path in SCORES),
        *(VectorEndpoint(path, partial(decode_rerank, shows=path not in _WITHOUT_TEXTS)) for path in RERANKS),
        VectorEndpoint(TEI_EMBED, decode_tei_embed),
        *(VectorEndpoint(path, decode_llama_cpp) for path in LLAMA_CPP),
    ),
    error=writer.vectors_error,
    headers={},
    schemas=Schemas(
        {
            **dict.fromkeys((EMBEDDINGS, POOLING), (EmbeddingsBody, REFUSED)),
            CLASSIFY: (ClassifyBody, REFUSED),
            **dict.fromkeys(SCORES, (ScoreBody, REFUSED)),
            **dict.fromkeys(RERANKS, (RerankBody, REFUSED)),
            TEI_EMBED: (TeiEmbedBody, {}),
            **dict.fromkeys(LLAMA_CPP, (LlamaCppEmbedBody, {})),
        }
    ),
)
