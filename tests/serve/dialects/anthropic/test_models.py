"""Pages of models as Anthropic's API turns them."""

from __future__ import annotations

import json

import pytest

from quire.serve.dialects.anthropic.models import encode_page
from quire.types.chat import ModelCard
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure

CARDS = [ModelCard(name, created=1_700_000_000.5, max_context=2048) for name in "abcde"]


@pytest.mark.parametrize(
    "query, names, has_more",
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "d"}, "e", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "5", "before_id": "d"}, "abc", False),
        ({"before_id": "a"}, "", False),
    ],
)
def test_pages(query, names, has_more):
    shown = json.loads(encode_page(CARDS, query))
    assert "".join(model["id"] for model in shown["data"]) == names and shown["has_more"] is has_more
    assert (shown["first_id"] or "") == names[:1] and (shown["last_id"] or "") == names[-1:]


def test_a_model_has_its_time_and_its_context():
    model = json.loads(encode_page(CARDS, {}))["data"][0]
    assert model["created_at"] == "2023-11-14T22:13:20Z" and model["max_input_tokens"] == 2048


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "x"}, {"after_id": "z"}, {"before_id": "z"}, {"page": "1"}]
)
def test_what_is_wrong_in_a_query_is_named(query):
    with pytest.raises(InvalidRequest, match=next(iter(query))):
        encode_page(CARDS, query)
