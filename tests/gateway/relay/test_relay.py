"""What becomes of a request when upstreams answer, refuse, hang, break off or send garbage. All of them are stubs."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from quire.gateway.http.errors import UpstreamUnreachable
from quire.serve.dialects.embeddings.dialect import DIALECT as VECTORS
from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.gateway.stub_upstream import (
    WORDS,
    Stub,
    close_early,
    hang,
    refuse,
    respond,
    send_garbage,
    stream_words,
    stub,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ALL = "".join(WORDS)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Count"}]}
STREAM = CHAT | {"stream": True}
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[RunningGateway, Stub, Stub]]:
    """Two stubs behind one gateway."""
    with stub() as one, stub() as two, gateway_of(one, two) as gateway:
        yield gateway, one, two


@pytest.fixture
def fleet(world) -> tuple[RunningGateway, Stub, Stub]:
    """The same, as new."""
    gateway, one, two = world
    for each in (one, two):
        each.answer, each.health = stream_words(), 200
        each.requests.clear()
    for upstream in gateway.service.upstreams:
        upstream.breaker.succeed()
    gateway.service.outliers._histories.clear()
    gateway.service.relay._budget._level = 10.0
    gateway.wait_ready(2)
    return gateway, one, two


@contextmanager
def gateway_of(*stubs: Stub, **settings: Any) -> Iterator[RunningGateway]:
    with running_gateway([each.url for each in stubs], balance="round_robin", **settings) as gateway:
        yield gateway


def text_of(lines: list[str]) -> str:
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for each in found for choice in each.get("choices", ()))


def stream(gateway: RunningGateway, body: dict[str, Any] = STREAM, path: str = PATH) -> list[str]:
    with gateway.http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        return list(response.iter_lines())


def test_a_stream_is_passed_on_byte_by_byte(fleet):
    gateway, one, two = fleet
    answer = gateway.http.post(PATH, json=STREAM)
    lines = answer.text.splitlines()
    assert text_of(lines) == ALL and lines[-2] == "data: [DONE]"
    assert len(one.requests) + len(two.requests) == 1
    record = gateway.record_of(answer)
    assert (record.prompt_tokens, record.output_tokens) == (7, len(WORDS))


def test_requests_are_spread_and_connections_are_kept(fleet):
    gateway, one, two = fleet
    for _ in range(6):
        assert gateway.http.post(PATH, json=CHAT).json()["choices"][0]["message"]["content"] == ALL
    assert len(one.requests) == len(two.requests) == 3


@pytest.mark.parametrize("broken", [refuse(500), refuse(503), send_garbage, close_early, stream_words(dies_after=0)])
def test_another_upstream_answers_if_one_fails_before_the_first_token(fleet, broken):
    gateway, one, two = fleet
    one.answer = broken
    for _ in range(2):
        assert text_of(stream(gateway)) == ALL
    assert len(two.requests) == 2


def test_a_stream_that_breaks_after_text_ends_with_an_error_and_is_not_answered_twice(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = stream_words(dies_after=3)
    lines = stream(gateway)
    assert text_of(lines) == "".join(WORDS[:3])
    assert "event: error" in lines and "stream_lost" in "".join(lines)
    assert len(one.requests) + len(two.requests) == 1


def test_with_resume_text_another_upstream_continues_the_text():
    async def answer(request, writer):
        body = request.json()
        last = body["messages"][-1]
        if last["role"] == "user":
            await stream_words(dies_after=3)(request, writer)
            return
        assert last["content"] == "".join(WORDS[:3]) and body["continue_final_message"] and body["max_tokens"] < 100
        await stream_words(start=3, id="other")(request, writer)

    with stub(answer=answer) as one, stub(answer=answer) as two, gateway_of(one, two, resume_text=True) as gateway:
        lines = stream(gateway, STREAM | {"max_tokens": 100})
        ids = {json.loads(line[6:]).get("id") for line in lines if line.startswith('data: {"id')}
        assert text_of(lines) == ALL and ids == {"stub"} and len(one.requests) == len(two.requests) == 1


def test_429_and_503_are_passed_on_with_retry_after_if_no_upstream_does_better(fleet):
    gateway, one, two = fleet
    one.answer, two.answer = refuse(503, retry_after="9"), refuse(429, retry_after="4")
    answer = gateway.http.post(PATH, json=CHAT)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "4")
    assert "stub says 429" in answer.text


def test_an_error_of_the_client_is_passed_on_at_once(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = refuse(400)
    answer = gateway.http.post(PATH, json=CHAT)
    assert answer.status_code == 400 and "stub says 400" in answer.text
    assert len(one.requests) + len(two.requests) == 1


def test_a_key_that_upstreams_refuse_is_reported_as_the_gateways_fault(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = refuse(401)
    answer = gateway.http.post(PATH, json=CHAT)
    assert answer.status_code == 502 and "upstream_refused_gateway" in answer.text


def test_retries_have_a_budget(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = refuse(503)
    gateway.service.relay._budget._level = 0.0
    assert gateway.http.post(PATH, json=CHAT).status_code == 503
    assert len(one.requests) + len(two.requests) == 1


def test_an_unknown_model_is_refused_with_the_models_there_are(fleet):
    gateway, _, _ = fleet
    answer = gateway.http.post(PATH, json=CHAT | {"model": "nope"})
    assert answer.status_code == 404 and "the fleet's models are m" in answer.json()["error"]["message"]


def test_bodies_that_are_no_json_get_the_upstreams_own_error(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = refuse(400)
    for body in (b"", b"{", b"[1]", b"\xff\xfe", b'{"model": 3}'):
        answer = gateway.http.post(PATH, content=body)
        assert answer.status_code == 400 and "stub says 400" in answer.text


def test_a_form_is_relayed_by_the_model_in_it(fleet):
    gateway, one, two = fleet

    async def transcribe(request, writer):
        assert b"RIFF" in request.body
        await respond(writer, 200, {"text": "hello"})

    one.answer = two.answer = transcribe
    files, data = {"file": ("a.wav", b"RIFF" + bytes(1000))}, {"model": "m"}
    answer = gateway.http.post("/v1/audio/transcriptions", files=files, data=data)
    assert answer.json() == {"text": "hello"}
    missing = gateway.http.post("/v1/audio/transcriptions", files=files, data={"model": "other"})
    assert missing.status_code == 404


def test_embeddings_and_rerank_are_relayed_with_their_usage(fleet):
    gateway, one, two = fleet

    async def embed(request, writer):
        await respond(writer, 200, {"data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}})

    one.answer = two.answer = embed
    answer = gateway.http.post("/v1/embeddings", json={"model": "m", "input": "x"})
    assert answer.json()["data"] == [] and gateway.record_of(answer).prompt_tokens == 5
    assert gateway.http.post("/v1/rerank", json={"model": "m", "query": "x", "documents": []}).status_code == 200
    for endpoint in VECTORS.endpoints:
        assert gateway.http.post(endpoint.path, json={"model": "m", "input": "x"}).status_code == 200, endpoint.path


def test_headers_of_clients_are_not_passed_on_unless_they_are_known(fleet):
    gateway, one, two = fleet
    headers = {"authorization": "Bearer secret", "cookie": "a=b", "x-quire-client": "{}", "x-quire-note": "1"}
    gateway.http.post(PATH, json=CHAT, headers=headers | {"x-request-id": "r-1"})
    sent = [*one.requests, *two.requests][0].headers
    assert not sent.keys() & headers.keys() and sent["x-request-id"] == "r-1"


def test_a_client_that_leaves_ends_the_request_at_the_upstream(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = stream_words(pause=0.2)
    with gateway.http.stream("POST", PATH, json=STREAM) as response:
        next(response.iter_lines())
    wait_until(lambda: not any(each.pool.num_busy for each in gateway.service.upstreams), 10)
    assert len([*one.requests, *two.requests]) == 1  # ended, and not tried elsewhere


def test_a_prompt_is_in_the_queue_of_its_upstream_until_the_first_token_only(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = stream_words(pause=0.2)
    with gateway.http.stream("POST", PATH, json=STREAM) as response:
        lines = response.iter_lines()  # kept: httpx closes the connection of an iterator that is dropped
        next(lines)
        replicas = gateway.service.balance._fleets["m"].replicas()
        assert sum(each.num_open for each in replicas) == 1
        assert sum(each.sent_tokens for each in replicas) == 0


def test_a_request_that_cannot_be_sent_again_is_not_counted_as_open(fleet, monkeypatch):
    gateway, one, _ = fleet
    for _ in range(2):
        gateway.http.post(PATH, json=CHAT)  # both upstreams have an idle connection now
    first = next(each for each in gateway.service.upstreams if each.spec.url == one.url)

    async def refuse_connection():
        raise UpstreamUnreachable(first.name, "refuses connections")

    one.answer = close_early  # the idle connection breaks, and no new one can be made
    monkeypatch.setattr(first.pool, "_connect", refuse_connection)
    for _ in range(2):
        assert text_of(stream(gateway)) == ALL
    replicas = gateway.service.balance._fleets["m"].replicas
    wait_until(lambda: sum(each.num_open for each in replicas()) == 0)


def test_a_client_that_reads_slowly_gets_everything(fleet):
    gateway, one, two = fleet
    big = b"data: " + json.dumps({"choices": [{"delta": {"content": "x" * 100_000}}]}).encode() + b"\n\n"

    async def much(request, writer):
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {100 * len(big)}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(100):
            writer.write(big)
            await writer.drain()

    one.answer = two.answer = much
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        body = json.dumps(STREAM).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        client.sendall(head.encode() + body)
        time.sleep(0.5)  # the gateway's buffers are full: it must stop reading the upstream
        received = 0
        while data := client.recv(1 << 20):
            received += len(data)
    assert received > 100 * len(big)


def test_an_upstream_that_hangs_is_replaced(fleet):
    with stub(answer=hang) as one, stub() as two, gateway_of(one, two, silence_seconds=2.0) as gateway:
        for _ in range(2):
            assert text_of(stream(gateway)) == ALL


def test_after_failures_in_a_row_an_upstream_gets_no_requests_until_it_has_recovered():
    with (
        stub(answer=refuse(500)) as one,
        stub() as two,
        gateway_of(one, two, max_failures=2, check_seconds=60) as gateway,
    ):
        for _ in range(10):
            assert gateway.http.post(PATH, json=CHAT).status_code == 200
        assert len(one.requests) == 2 and gateway.upstreams()[one.url[7:]]["circuit"] == "open"
        one.answer = stream_words()
        wait_until(lambda: gateway.upstreams()[one.url[7:]]["circuit"] == "half_open", 10)
        for _ in range(4):
            gateway.http.post(PATH, json=CHAT)
        assert gateway.upstreams()[one.url[7:]]["circuit"] == "closed" and len(one.requests) > 2


def test_an_upstream_that_is_drained_finishes_its_streams_and_gets_no_more(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = stream_words(pause=0.05)
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(text_of(stream(gateway)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(one.requests) == 2)
    name = one.url.removeprefix("http://")
    assert gateway.http.post("/v1/upstreams/drain", json={"name": name}).json()["num_open"] >= 2
    for thread in threads:
        thread.join()
    assert results == [ALL] * 4
    for _ in range(3):
        gateway.http.post(PATH, json=CHAT)
    assert len(one.requests) == 2 and len(two.requests) == 5
    gateway.http.post("/v1/upstreams/drain", json={"name": name, "drain": False})
    assert gateway.http.post("/v1/upstreams/drain", json={"name": "none"}).status_code == 400


def test_with_hedging_the_first_of_two_answers_is_used():
    with stub(answer=hang) as one, stub() as two, gateway_of(one, two, hedge_seconds=0.1) as gateway:
        for _ in range(2):
            assert text_of(stream(gateway)) == ALL
        assert len(one.requests) >= 1
        wait_until(lambda: not any(each.pool.num_busy for each in gateway.service.upstreams), 10)


def test_without_hedging_a_request_is_sent_once(fleet):
    gateway, one, two = fleet
    one.answer = two.answer = stream_words(pause=0.05)
    stream(gateway)
    assert len(one.requests) + len(two.requests) == 1


def test_no_upstream_at_all_is_a_503_that_says_so():
    with running_gateway() as gateway:
        answer = gateway.http.post(PATH, json=CHAT)
        assert answer.status_code == 503 and "0 upstreams are known" in answer.text
        assert gateway.http.get("/ready").status_code == 503 and gateway.http.get("/health").status_code == 200


def test_an_upstream_that_comes_back_soon_is_waited_for():
    with ExitStack() as stack:
        one = stack.enter_context(stub(health=503))
        gateway = stack.enter_context(running_gateway([one.url], waits=False, wait_seconds=20))
        threading.Timer(0.5, lambda: setattr(one, "health", 200)).start()
        assert gateway.http.post(PATH, json=CHAT).status_code == 200


def test_paths_of_single_servers_and_unknown_paths_are_refused(fleet):
    gateway, one, two = fleet
    for path in ("/api/pull", "/api/delete", "/v1/text", "/v1/load"):
        assert gateway.http.post(path, json={}).status_code == 501
    assert gateway.http.get("/nothing").status_code == 404
    assert gateway.http.get("/v1/upstreams/join").status_code == 405
    assert not one.requests + two.requests


def test_the_lists_of_models_are_joined():
    with (
        stub(models=("a", "b")) as one,
        stub(models=("b", "c"), owner="llamacpp") as two,
        gateway_of(one, two) as gateway,
    ):
        listed = [each["id"] for each in gateway.http.get("/v1/models").json()["data"]]
        assert sorted(listed) == ["a", "b", "c"]
        kinds = {each["kind"] for each in gateway.upstreams().values()}
        assert kinds == {"vllm", "llama-server"}
        gateway.http.post(PATH, json=CHAT | {"model": "c"})
        assert len(two.requests) == 1 and not one.requests


def test_a_trace_goes_on_at_the_upstream_with_the_gateways_span_as_parent(fleet):
    gateway, one, two = fleet
    caller = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    answer = gateway.http.post(PATH, json=CHAT, headers={"traceparent": caller, "tracestate": "x=y"})
    sent = [*one.requests, *two.requests][0].headers
    version, trace, span, flags = sent["traceparent"].split("-")
    assert (version, trace, flags) == ("00", "a" * 32, "01") and span != "b" * 16 and sent["tracestate"] == "x=y"
    assert gateway.record_of(answer).span == (trace, span)


def test_a_body_that_is_too_large_is_refused_here(fleet):
    gateway, one, two = fleet
    answer = httpx.post(gateway.url + PATH, content=b"x" * 33_000_000, timeout=60)
    assert answer.status_code == 413 and not one.requests + two.requests
