"""Malformed HTTP requests: each gets an answer, in the dialect of its path."""

from __future__ import annotations

import http.client
import socket
import time
from urllib.parse import urlsplit

import pytest

from quire import __version__
from tests.serve.running import Running, running

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(model_file):
    with running(
        model_file, max_body_mb=0.05, body_seconds=0.5, cors_origins="https://a.example, https://b.example"
    ) as made:
        yield made


def raw(server: Running, data: bytes, patience: float = 5.0) -> bytes:
    """Send these bytes, and read until the server has nothing more to say."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.settimeout(patience)
        connection.sendall(data)
        said = b""
        while piece := connection.recv(65536):
            said += piece
        return said


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    "method, path, status, code",
    [
        ("GET", "/plain/nothing", 404, "not_found"),
        ("GET", "/plain/chat", 405, "method_not_allowed"),
        ("POST", "/plain/models", 405, "method_not_allowed"),
        ("GET", "/plain/models/nobody", 404, "model_not_found"),
        ("POST", "/plain/chat", 400, "invalid_request"),
    ],
)
def test_errors_are_encoded_in_the_dialect_of_the_path(server, method, path, status, code):
    response = server.http.request(method, path, content=b"{" if method == "POST" else None)
    assert (response.status_code, response.json()["plain_error"]) == (status, code)
    assert response.headers["x-plain"] == "yes" and response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("method, path, status", [("GET", "/nothing", 404), ("PUT", "/health", 405)])
def test_our_own_paths_have_errors_of_our_own(server, method, path, status):
    response = server.http.request(method, path)
    assert response.status_code == status and set(response.json()["error"]) == {"code", "message"}


def test_a_wrong_method_is_answered_with_the_allowed_ones(server):
    assert server.http.get("/plain/chat").headers["allow"] == "POST"


def test_a_request_keeps_its_own_id_if_that_is_sane(server):
    assert server.http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for insane in ("two words", "x" * 200, "ümlaut".encode("latin-1")):
        given = server.http.get("/health", headers={"x-request-id": insane}).headers["x-request-id"]
        assert len(given) == 24 and given != insane
    assert "total;dur=" in server.http.get("/health").headers["server-timing"]


def test_a_body_that_is_too_large_is_refused_before_and_while_it_comes(server):
    large = b"x" * 60_000
    announced = server.http.post("/plain/chat", content=large)
    assert announced.status_code == 413 and "50,000 bytes" in announced.json()["message"]
    assert announced.headers["connection"] == "close"

    def pieces():
        for _ in range(6):
            yield large[:10_000]

    assert server.http.post("/plain/chat", content=pieces()).status_code == 413


def test_a_body_that_does_not_come_is_not_waited_for(server):
    said = raw(server, head("/plain/chat", "Content-Length: 100") + b'{"messages"')
    assert said.startswith(b"HTTP/1.1 408") and b"body_timeout" in said


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"\xff\xfe", b'{"messages": 3}', b'{"messages": [{"role": 1}]}', b"{" * 2000]
)
def test_no_body_makes_the_server_fail_without_an_answer(server, body):
    response = server.http.post("/plain/chat", content=body)
    assert response.status_code in (400, 500) and "plain_error" in response.json()
    assert server.http.get("/health").status_code == 200


def test_bytes_that_are_not_http_are_answered_and_dropped(server):
    assert raw(server, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert server.http.get("/health").status_code == 200


def test_a_bug_is_reported_with_the_request_id_alone(server, caplog):
    broken = {"messages": [{"role": "user", "text": ["not text"]}]}
    response = server.http.post("/plain/chat", json=broken, headers={"x-request-id": "bug-7"})
    assert response.status_code in (400, 500)
    if response.status_code == 500:
        assert "bug-7" in response.json()["message"] and "Traceback" not in response.text


def test_models_are_listed_and_shown(server):
    assert server.http.get("/plain/models").json() == server.http.get("/plain/loaded").json() == {"models": ["toy"]}
    assert server.http.get("/plain/models/toy").json() == {"name": "toy", "architecture": "llama"}
    assert server.http.post("/plain/show", json={"model": "other"}).json() == {"name": "toy"}


def test_a_head_request_has_no_body(server):
    response = server.http.head("/plain/models")
    assert response.status_code == 200 and response.content == b""


def test_web_pages_of_the_given_origins_may_call(server):
    asked = {"Origin": "https://b.example", "Access-Control-Request-Method": "POST"}
    allowed = server.http.options("/plain/chat", headers=asked)
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == "https://b.example"
    refused = server.http.options("/plain/chat", headers=asked | {"Origin": "https://evil.example"})
    assert refused.status_code == 400 and "access-control-allow-origin" not in refused.headers
    seen = server.http.get("/health", headers={"Origin": "https://a.example"})
    assert seen.headers["access-control-allow-origin"] == "https://a.example"


def test_other_web_pages_may_not_even_ask_where_no_key_protects_the_server(server):
    foreign = server.http.post("/plain/chat", content=b"{}", headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403 and "evil.example" in foreign.json()["message"]
    own = server.http.get("/plain/models", headers={"Origin": server.url})
    assert own.status_code == 200


def test_a_connection_serves_many_requests_one_after_another(server):
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    for _ in range(3):
        connection.request("GET", "/version")
        response = connection.getresponse()
        assert response.status == 200 and __version__ in response.read().decode()
    connection.close()


def test_requests_are_recorded_with_their_outcome(server):
    server.records.clear()
    server.http.get("/plain/nothing", headers={"x-request-id": "r-1"})
    deadline = time.monotonic() + 5
    while not server.records and time.monotonic() < deadline:
        time.sleep(0.01)
    (record,) = server.records
    assert (record.request_id, record.path, record.status, record.error) == ("r-1", "/plain/nothing", 404, "not_found")
    assert record.ended >= record.arrived and record.dialect == "plain"
