"""Drafts from the prefix tree are of the request's own tenant: others' texts would show in the speed of answers."""

from __future__ import annotations

from itertools import count

import pytest

from quire.engine.llm import LLM
from quire.types.request import CacheKey, GenerateRequest, SamplingParams

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("free_drafts")]

PROMPT = tuple(map(ord, "Once upon a time"))
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
NUMBERS = count()


def from_tree(llm: LLM) -> int:
    return llm.client.counters().drafted_tokens["tree"]


def answer(llm: LLM, salt: str) -> list[int]:
    """Send what a server makes of a request with this `cache_salt`."""
    request = GenerateRequest(f"request {next(NUMBERS)}", PROMPT, GREEDY, cache=CacheKey(salt=salt))
    return [token for news in llm.client.stream(request) for token in getattr(news, "tokens", ())]


def test_another_salt_has_no_drafts_from_the_tree(llm: LLM) -> None:
    first = answer(llm, "ours")
    assert len(first) == 40 and from_tree(llm) == 0
    for salt in ("theirs", "", "Ours", "ours "):
        assert answer(llm, salt) == first and from_tree(llm) == 0, salt
    assert answer(llm, "ours") == first and from_tree(llm) > 0
