"""Requests for a model that has no upstream yet: they wait in a queue, and are answered when one joins."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.gateway.running_gateway import running_gateway
from tests.gateway.stub_upstream import WORDS, stub
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Count"}]}


def test_requests_wait_for_a_model_that_is_expected_and_no_more_than_allowed(tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(json.dumps({"models": {"m": {"wait_seconds": 60, "max_waiting": 2}, "n": {"wait_seconds": 0}}}))
    with stub() as upstream, running_gateway(fleet=str(fleet)) as gateway, ThreadPoolExecutor(2) as pool:
        assert [each["id"] for each in gateway.http.get("/v1/models").json()["data"]] == ["m", "n"]
        first = [pool.submit(gateway.http.post, PATH, json=CHAT) for _ in range(2)]
        wait_until(lambda: waiting(gateway).get("m", {}).get("num") == 2)
        full = gateway.http.post(PATH, json=CHAT)
        assert (
            full.status_code == 503 and full.json()["error"]["code"] == "no_upstream" and "retry-after" in full.headers
        )
        assert gateway.http.post(PATH, json=CHAT | {"model": "n"}).status_code == 503
        unknown = gateway.http.post(PATH, json=CHAT | {"model": "x"})
        assert unknown.status_code == 404 and "the fleet's models are m, n" in unknown.text
        assert gateway.http.post("/v1/upstreams/join", json={"url": upstream.url}).status_code == 200
        for answer in (each.result(30) for each in first):
            assert answer.status_code == 200 and WORDS[0] in answer.text
        assert {each["id"]: each.get("loaded") for each in gateway.http.get("/v1/models").json()["data"]} == {
            "m": None,
            "n": False,
        }
        assert waiting(gateway) == {} and len(upstream.requests) == 2


def waiting(gateway):
    return gateway.http.get("/v1/upstreams").json()["waiting"]
