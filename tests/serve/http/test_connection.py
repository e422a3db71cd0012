"""Clients that send or read too slowly: their connections are closed, and others are served meanwhile."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit

import pytest

from quire.serve.http.connection import MAX_HEADER_BYTES
from tests.serve.running import Running, running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server(model_file):
    with running(model_file, waits=False, header_seconds=0.3, body_seconds=0.3, stall_seconds=0.3) as made:
        yield made


def connected(server: Running) -> socket.socket:
    where = urlsplit(server.url)
    connection = socket.create_connection((where.hostname, where.port))
    connection.settimeout(30)
    return connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    said = b""
    while piece := connection.recv(65536):
        said += piece
    return said


@pytest.mark.parametrize("sent", [b"GET", GET, GET + b"X-Half: "])
def test_headers_that_stop_halfway_are_answered_and_closed(server, sent):
    with connected(server) as connection:
        connection.sendall(sent)
        said = rest(connection)
    assert said.startswith(b"HTTP/1.1 408") and b"0.3 s" in said


def test_a_connection_without_a_request_is_closed(server):
    with connected(server) as connection:
        assert rest(connection) == b""


def test_a_second_request_that_stops_halfway_is_closed_too(server):
    with connected(server) as connection:
        connection.sendall(GET + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(GET)
        assert b"HTTP/1.1 408" in rest(connection)


def test_a_byte_now_and_then_does_not_extend_the_time(server):
    with connected(server) as connection:
        connection.sendall(GET + b"X-Slow: ")
        is_over = threading.Event()

        def drip() -> None:
            while not is_over.wait(0.02):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert rest(connection).startswith(b"HTTP/1.1 408")
        except ConnectionResetError:  # bytes were on their way when it was closed
            pass
        finally:
            is_over.set()
            thread.join()


def test_headers_that_are_too_large_are_refused(server):
    with connected(server) as connection:
        connection.sendall(GET + b"X-Large: " + b"x" * (MAX_HEADER_BYTES + 1))
        assert rest(connection).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("path", [b"/health", b"/plain/chat"])
def test_a_body_that_stops_halfway_holds_no_connection(server, path):
    """Whether it was to be read, or the answer did not need it."""
    method = b"GET" if path == b"/health" else b"POST"
    with connected(server) as connection:
        connection.sendall(method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        said = rest(connection)
    assert said.startswith(b"HTTP/1.1 200" if path == b"/health" else b"HTTP/1.1 408")


def test_a_client_that_does_not_read_is_closed(server):
    with connected(server) as connection:
        ended = len(server.records)
        page = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(page * 500)  # more than the buffers of both sides hold
        with pytest.raises(OSError):  # once it is closed, a write fails
            while True:
                connection.sendall(GET + b"\r\n")
                threading.Event().wait(0.02)
        wait_until(lambda: len(server.records) > ended)


def test_many_slow_clients_do_not_keep_others_from_being_served(server):
    crowd = [connected(server) for _ in range(200)]
    for connection in crowd:
        connection.sendall(GET)
    assert server.http.get("/health").status_code == 200
    for connection in crowd:
        with connection:
            assert rest(connection).startswith(b"HTTP/1.1 408")
