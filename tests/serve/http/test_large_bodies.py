"""Bodies of megabytes delay neither /health nor a request of ordinary size."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.serve import service
from quire.serve.dialects.openai.dialect import DIALECT as OPENAI
from quire.serve.http.text_threads import HUGE_BODY
from tests.serve.plain_dialect import PLAIN
from tests.serve.running import running

pytestmark = pytest.mark.e2e

LONG = "The quick brown fox jumps over the lazy dog. " * (HUGE_BODY // 40)


@pytest.fixture(scope="module")
def server(model_file):
    with running(model_file, (PLAIN, OPENAI)) as made:
        yield made


class Gate:
    """A step that waits, where a large body comes to it, until it is let go on."""

    def __init__(self, step):
        self._step = step
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, *given):
        if threading.current_thread().name.startswith("quire-large-text"):
            self.reached.set()
            assert self.open.wait(60)
        return self._step(*given)


def test_health_and_ordinary_requests_are_answered_while_a_large_body_is_prepared(server, monkeypatch):
    gate = Gate(service.encode_prompts)
    monkeypatch.setattr(service, "encode_prompts", gate)
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(server.http.post, "/plain/complete", json={"prompts": [LONG]})
        try:
            assert gate.reached.wait(60)
            assert server.http.get("/health").status_code == 200
            ordinary = {"prompts": ["word " * 900], "max_tokens": 1}  # long enough to be encoded in a thread
            assert server.http.post("/plain/complete", json=ordinary).status_code == 200
            assert not large.done()
        finally:
            gate.open.set()
        refused = large.result()
    assert (refused.status_code, refused.json()["plain_error"]) == (400, "context_too_long")
    assert "more than" in refused.json()["message"]


def test_a_large_body_is_decoded_beside_the_loop_too(server, monkeypatch):
    from quire.serve.dialects.openai import dialect as openai

    gate = Gate(openai.read_messages)
    monkeypatch.setattr(openai, "read_messages", gate)
    body = {"model": "toy", "messages": [{"role": "user", "content": LONG}]}
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(server.http.post, "/v1/chat/completions", json=body)
        try:
            assert gate.reached.wait(60)
            assert server.http.get("/health").status_code == 200
        finally:
            gate.open.set()
        error = large.result().json()["error"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/cache/explain"])
def test_our_own_endpoints_do_not_hold_up_the_loop_either(server, path, monkeypatch):
    gate = Gate(service.encode_prompts)
    monkeypatch.setattr(service, "encode_prompts", gate)
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(server.http.post, path, json={"prompt": LONG})
        try:
            assert gate.reached.wait(60)
            assert server.http.get("/health").status_code == 200
        finally:
            gate.open.set()
        response = large.result()
    if path == "/tokenize":  # it counts what is longer than any context too
        assert response.json()["count"] > len(LONG) / 10
    else:
        assert response.json()["error"]["code"] == "context_too_long"
