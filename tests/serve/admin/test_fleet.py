"""What a gateway reads of a server: loads, and the events of the cache."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.serve.http.app import all_dialects
from quire.types.digests import block_digest, path_digests, root_digest
from quire.types.request import CacheKey
from tests.serve.running import Running, running

pytestmark = pytest.mark.e2e

PROMPT = list(range(100, 140))  # two blocks and a half


@pytest.fixture(scope="module")
def server(model_file: Path) -> Iterator[Running]:
    with running(model_file, all_dialects()) as started:
        yield started


def complete(server: Running, prompt: list[int], **more: Any) -> None:
    reply = server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4, "temperature": 0} | more)
    assert reply.status_code == 200, reply.text


def events(server: Running, query: str = "") -> list[dict[str, Any]]:
    reply = server.http.get(f"/v1/cache/events{query}")
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def stored(lines: list[dict[str, Any]]) -> dict[str, list[int]]:
    return {event[1]: event[3] for line in lines for event in line["events"] if event[0] == "stored"}


def test_a_load_report_counts_what_was_computed_and_measures_the_pace(server: Running):
    complete(server, PROMPT)
    report = server.http.get("/v1/load").json()["models"]
    assert len(report) == 1
    load = next(iter(report.values()))
    assert load["epoch"] and load["sequence"] > 0 and load["max_rows"] == 16 and load["num_blocks"] > 0
    assert load["num_running"] == load["num_waiting"] == load["waiting_tokens"] == load["prompt_tokens"] == 0
    assert load["computed_tokens"] >= len(PROMPT) and load["prompt_rate"] > 0 and load["decode_seconds"] > 0


def test_events_name_the_blocks_of_a_prompt_by_the_digests_of_its_tokens(server: Running):
    complete(server, PROMPT)
    lines = events(server)
    assert lines[0]["part"] == [1, 1] and lines[0]["block_tokens"] == 16
    found = stored(lines)
    data = array("I", PROMPT).tobytes()
    first, second = path_digests(root_digest(CacheKey()), data, 64)
    assert found[first.hex()] == PROMPT[:16] and found[second.hex()] == PROMPT[16:32]
    tails = {digest: tokens for digest, tokens in found.items() if tokens[:8] == PROMPT[32:40]}
    assert tails
    for digest, tokens in tails.items():
        assert digest == block_digest(second, array("I", tokens).tobytes()).hex()


def test_a_stream_continues_at_a_position(server: Running):
    complete(server, PROMPT)
    last = events(server)[-1]
    where = f"?epoch={last['epoch']}&after={last['last']}"
    assert events(server, where) == [last | {"after": last["last"], "events": []}]
    complete(server, [7] * 40)
    lines = events(server, where)
    assert lines[0]["after"] == last["last"] and "part" not in lines[0]
    assert list(stored(lines).values())[:2] == [[7] * 16, [7] * 16]
    assert "part" in events(server, f"?epoch=another&after={last['last']}")[0]


def test_a_stream_follows_the_cache(server: Running):
    complete(server, PROMPT)
    seen: list[list[Any]] = []
    with server.http.stream("GET", "/v1/cache/events?follow=true") as stream:
        lines = stream.iter_lines()
        assert json.loads(next(lines))["part"]
        flush = threading.Timer(0.2, lambda: server.http.post("/v1/cache/flush"))
        flush.start()
        while ["cleared"] not in seen:
            seen += json.loads(next(lines))["events"]
        flush.join()
    assert stored(events(server)) == {}


def test_salts_have_their_own_digests(server: Running):
    complete(server, [9] * 32, cache_salt="a")
    found = stored(events(server))
    key = CacheKey(salt="/a")
    assert {each.hex() for each in path_digests(root_digest(key), array("I", [9] * 32).tobytes(), 64)} <= found.keys()


@pytest.mark.parametrize("query, field", [("?after=x", "after"), ("?follow=1", "follow"), ("?since=1", "since")])
def test_a_bad_query_is_refused_by_its_name(server: Running, query: str, field: str):
    reply = server.http.get(f"/v1/cache/events{query}")
    assert reply.status_code == 400 and reply.json()["error"]["field"] == field
