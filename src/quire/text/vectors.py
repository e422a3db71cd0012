"""From texts to the tokens of pooled requests, and from the model's numbers to vectors, scores and classes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.text.embedding_rules import IDENTITY, SIGMOID, EmbeddingRules
from quire.text.model_text import ModelText
from quire.text.pair_prompts import encode_judged, no_instruction
from quire.text.token_room import TokenRoom
from quire.types.errors import InvalidRequest, WrongKind
from quire.types.kinds import TRANSCRIBE, RequestKind
from quire.types.vectors import WHOLE_MODEL, TextOrTokens, VectorAnswer, VectorRequest

Array = NDArray[Any]
BROKEN = "\ufffd"  # stands for the bytes of a character that was cut
POOLING_CURE = "A model that generates can embed too if it is loaded with --pooling."


class VectorFacts(NamedTuple):
    """What the engine says about its model."""

    kinds: Sequence[RequestKind]
    max_context: int
    vector_size: int


class EncodedText(NamedTuple):
    """The tokens of one request to the engine."""

    tokens: tuple[int, ...]
    kind: RequestKind
    second_at: int = 0  # where the second of two texts begins, for models that mark it; 0: there is one


def encode_texts(ask: VectorRequest, model_text: ModelText, facts: VectorFacts) -> list[EncodedText]:
    """Encode all texts. Of pairs: each pair as one, or, for a model that embeds, all first texts and then all others.

    Raises if the model cannot do what is asked.
    """
    if ask.kind not in facts.kinds:
        raise _wrong_kind(ask, model_text, facts)
    if ask.dimensions is not None and not 1 <= ask.dimensions <= facts.vector_size:
        raise InvalidRequest(
            f"dimensions is {ask.dimensions}, and the model's vectors have {facts.vector_size}: give from 1 to "
            f"{facts.vector_size}.",
            field="dimensions",
        )
    limit = min(facts.max_context, model_text.embedding.max_tokens or facts.max_context)
    rules = model_text.embedding
    if ask.kind is RequestKind.SCORE and ask.prompt is not None and rules.pair is None:
        raise no_instruction()
    if ask.kind is RequestKind.SCORE and RequestKind.CLASSIFY in facts.kinds:
        return [_encode_pair(pair, ask, model_text, limit) for pair in _pairs(ask)]
    texts = (*ask.texts, *ask.others)
    prompt = _prompt(ask, model_text.embedding)
    kind = RequestKind.EMBED if ask.kind is RequestKind.SCORE else ask.kind
    if "" in texts:
        field = ask.fields[0 if "" in ask.texts else 1]
        raise InvalidRequest("A text is empty: send at least one character.", field=field)
    plain = [prompt + each for each in texts if isinstance(each, str)]
    encoded = iter(_encode_plain(plain, model_text) if plain else [])
    tokens = [next(encoded) if isinstance(each, str) else list(each) for each in texts]
    frame = _frame_of(model_text) if plain else (0, 0)
    found = []
    for index, (ids, text) in enumerate(zip(tokens, texts, strict=True)):
        own, is_second = frame if isinstance(text, str) else (0, 0), index >= len(ask.texts)
        room = TokenRoom(_most(ask, sum(own), is_second), limit, ask.fields[is_second])
        found.append(EncodedText(tuple(_cut(ids, room, own)), kind))
    return found


def finish_vectors(
    ask: VectorRequest, numbers: Sequence[bytes], encoded: Sequence[EncodedText], rules: EmbeddingRules
) -> VectorAnswer:
    """Turn the engine's vectors, in the order of `encoded`, into the answer."""
    counts = tuple(len(each.tokens) for each in encoded)
    rows = [np.frombuffer(each, np.float32) for each in numbers]
    if ask.kind is RequestKind.EMBED:
        return VectorAnswer(tuple(_packed(_vector(row, ask, rules.normalizes)) for row in rows), counts)
    if ask.kind is RequestKind.CLASSIFY:
        labels = rules.labels or tuple(f"LABEL_{index}" for index in range(len(rows[0]) if rows else 0))
        return VectorAnswer(tuple(_packed(_classes(row, ask.raw, rules)) for row in rows), counts, labels)
    if encoded and encoded[0].kind is RequestKind.EMBED:
        return _similarities(ask, rows, counts)
    if rules.judges:
        rows = [row[:1] - row[1:] if len(row) == 2 else row for row in rows]
    for row in rows:
        if len(row) != 1:
            raise InvalidRequest(
                f"This model has {len(row)} classes, and a score needs one: ask it to classify.", field="model"
            )
    return VectorAnswer(tuple(_packed(_activated(row, ask.raw, rules)) for row in rows), counts)


def _wrong_kind(ask: VectorRequest, model_text: ModelText, facts: VectorFacts) -> WrongKind:
    """The error of a model that cannot do what is asked: what it can do, and how it could do more."""
    if model_text.speech is not None:
        return WrongKind(ask.kind, (TRANSCRIBE,))
    can_pool = RequestKind.GENERATE in facts.kinds and model_text.source is None
    is_cured = can_pool and ask.kind is not RequestKind.CLASSIFY
    return WrongKind(ask.kind, facts.kinds, POOLING_CURE if is_cured else "")


# --- tokens


def _pairs(ask: VectorRequest) -> list[tuple[TextOrTokens, TextOrTokens]]:
    firsts = ask.texts * len(ask.others) if len(ask.texts) == 1 else ask.texts
    return list(zip(firsts, ask.others, strict=True))


def _encode_plain(texts: list[str], model_text: ModelText) -> list[list[int]]:
    """Encode many texts at once, in several threads."""
    if model_text.embedding.lowercases:
        texts = [text.lower() for text in texts]
    return model_text.needed_tokenizer().encode_many(texts)


def _encode_pair(
    pair: tuple[TextOrTokens, TextOrTokens], ask: VectorRequest, model_text: ModelText, limit: int
) -> EncodedText:
    """Encode two texts as one, in the model's prompt or as its tokenizer frames pairs. Then the longer is cut first."""
    tokenizer, prompt = model_text.needed_tokenizer(), model_text.embedding.pair
    if prompt is not None:
        return EncodedText(_judged(pair, ask, model_text, limit), RequestKind.SCORE)
    first, second = (
        tokenizer.encode(each, add_bos=False, add_eos=False) if isinstance(each, str) else list(each) for each in pair
    )
    frame = tokenizer.pair_frame
    if frame is None:
        raise InvalidRequest(
            "Neither the model's tokenizer nor its chat template (roles query and document) says how two texts are "
            "read as one.",
            field="model",
        )
    second = second[: ask.max_second]
    room = TokenRoom(ask.truncate, limit, ask.fields[1])
    excess = room.excess(len(first) + len(second) + frame.num_tokens, frame.num_tokens)
    while excess > 0:
        longer = first if len(first) > len(second) else second
        longer.pop()
        excess -= 1
    before = (*frame.prefix, *first, *frame.middle)
    tokens = (*before, *second, *frame.suffix)
    return EncodedText(tokens, RequestKind.SCORE, len(before) if frame.marks_second else 0)


def _judged(
    pair: tuple[TextOrTokens, TextOrTokens], ask: VectorRequest, model_text: ModelText, limit: int
) -> tuple[int, ...]:
    """Encode a query and a document in the model's prompt, or what a client has encoded."""
    prompt, tokenizer = model_text.embedding.pair, model_text.needed_tokenizer()
    assert prompt is not None
    query, document = pair
    if not isinstance(query, str) or not isinstance(document, str):
        raise InvalidRequest("This model reads a query and a document as text, not as token ids.", field=ask.fields[0])
    if ask.max_second is not None:
        tokens = tokenizer.encode(document, add_bos=False, add_eos=False)
        cut = tokenizer.decode(tokens[: ask.max_second]).rstrip(BROKEN)
        document = cut if len(tokens) > ask.max_second else document
    room = TokenRoom(ask.truncate, limit, ask.fields[1])
    return encode_judged((query, document), prompt, ask.prompt, tokenizer, room)


def _prompt(ask: VectorRequest, rules: EmbeddingRules) -> str:
    if ask.prompt is not None:
        return ask.prompt
    found = rules.prompt_for(ask.prompt_name)
    if found is None:
        known = ", ".join(sorted(rules.prompts)) or "none"
        raise InvalidRequest(
            f"The model has no prompt named {ask.prompt_name or rules.default_prompt!r}: it has {known}.",
            field="prompt_name",
        )
    return found


def _frame_of(model_text: ModelText) -> tuple[int, int]:
    """How many tokens stand before and after a text."""
    tokenizer = model_text.needed_tokenizer()
    return len(tokenizer.prefix), len(tokenizer.suffix)


def _most(ask: VectorRequest, num_own: int, is_second: bool) -> int | None:
    """How many tokens a text is cut to, the model's own among them."""
    if not is_second or ask.max_second is None:
        return ask.truncate
    most = ask.max_second + num_own
    return most if ask.truncate in (None, WHOLE_MODEL) else min(most, ask.truncate)


def _cut(ids: list[int], room: TokenRoom, frame: tuple[int, int]) -> list[int]:
    """Cut a text that is too long, between the tokens that frame it."""
    excess, last = room.excess(len(ids), sum(frame)), len(ids) - frame[1]
    return ids[: last - excess] + ids[last:] if excess else ids


# --- numbers


def _packed(row: Array) -> array[float]:
    return array("f", row.astype(np.float32).tobytes())


def _vector(row: Array, ask: VectorRequest, normalizes: bool) -> Array:
    """The first numbers of a vector, to length 1 if it is to be so."""
    cut = row[: ask.dimensions]
    if not (normalizes if ask.normalize is None else ask.normalize):
        return cut
    length = float(np.sqrt(np.square(cut, dtype=np.float64).sum()))
    return cut / np.float32(length) if length > 1e-12 else cut


def _similarities(ask: VectorRequest, rows: list[Array], counts: tuple[int, ...]) -> VectorAnswer:
    """The cosine of the vectors of each pair."""
    units = [_vector(row, ask, True) for row in rows]
    num_firsts, pairs = len(ask.texts), []
    for index in range(len(ask.others)):
        first = 0 if num_firsts == 1 else index
        score = np.array([units[first] @ units[num_firsts + index]], np.float32)
        num_tokens = counts[num_firsts + index] + (counts[first] if index == first else 0)
        pairs.append((_packed(score), num_tokens))
    return VectorAnswer(tuple(score for score, _ in pairs), tuple(count for _, count in pairs))


def _activated(row: Array, raw: bool, rules: EmbeddingRules) -> Array:
    kind = rules.activation or SIGMOID
    if raw or kind == IDENTITY:
        return row
    if kind != SIGMOID:
        raise InvalidRequest(f"The model's scores have the activation {kind}, which is not supported.", field="model")
    return _sigmoid(row)


def _classes(row: Array, raw: bool, rules: EmbeddingRules) -> Array:
    if raw:
        return row
    if len(row) == 1 or rules.has_independent_classes:
        return _sigmoid(row)
    shares: Array = np.exp(row - row.max())
    return shares / shares.sum()


def _sigmoid(row: Array) -> Array:
    out: Array = 1.0 / (1.0 + np.exp(-row.astype(np.float64)))
    return out
