"""Models as Anthropic's API lists them: the same paths as OpenAI's, distinguished by the header `anthropic-version`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from quire.types.chat import ModelCard
from quire.types.errors import InvalidRequest

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000
QUERY = ("limit", "after_id", "before_id")


def encode_page(cards: Sequence[ModelCard], query: Mapping[str, str]) -> bytes:
    """Encode the page of models after or before the one that the query names."""
    for name in query:
        if name not in QUERY:
            raise InvalidRequest(f"{name[:64]}: Extra inputs are not permitted", field=name[:64])
    limit = _limit(query.get("limit"))
    names = [card.name for card in cards]
    start, end = 0, len(cards)
    if "after_id" in query:
        start = _place(names, query["after_id"], "after_id") + 1
    if "before_id" in query:
        end = _place(names, query["before_id"], "before_id")
        start = max(start, end - limit)
        has_more = start > 0
    else:
        has_more = end - start > limit
    data = [_model(card) for card in cards[start : min(end, start + limit)]]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return msgspec.json.encode({"data": data, "has_more": has_more, **ends})


def encode_model(card: ModelCard) -> bytes:
    """Encode one model."""
    return msgspec.json.encode(_model(card))


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_LIMIT
    if not given.isdecimal() or not 1 <= int(given) <= MAX_LIMIT:
        raise InvalidRequest(f"limit: Must be a number from 1 to {MAX_LIMIT}", field="limit")
    return int(given)


def _place(names: Sequence[str], name: str, field: str) -> int:
    if name not in names:
        raise InvalidRequest(f"{field}: There is no model {name[:64]!r}", field=field)
    return names.index(name)


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "type": "model",
        "id": card.name,
        "display_name": card.name,
        "created_at": datetime.fromtimestamp(int(card.created), UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": card.max_context or None,
        "max_tokens": card.max_context or None,
    }
