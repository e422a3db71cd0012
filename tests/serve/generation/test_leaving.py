"""Clients that go away, clients that do not read: nobody else notices, and nothing is left behind."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.serve.running import Running
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ENDLESS = {"prompts": ["Once upon a time"], "temperature": 0, "ignore_eos": True, "max_tokens": 1000}


def ask(server: Running, body: dict[str, Any], receive_bytes: int | None = None) -> socket.socket:
    """A connection on which a request was sent and nothing read yet."""
    where = urlsplit(server.url)
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(30)
    connection.connect((where.hostname, where.port))
    data = json.dumps(body).encode()
    head = f"POST /plain/complete HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    connection.sendall(head + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_the_blocks_of_a_request(server, stream):
    before = server.counters()
    connection = ask(server, ENDLESS | {"stream": stream, "n": 3})
    wait_until(lambda: server.counters().num_held_blocks > 0)
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.close()
    wait_until(lambda: server.counters().num_held_blocks == 0)
    after = server.counters()
    assert after.num_running == after.num_waiting == 0
    assert after.num_cancelled - before.num_cancelled == 3
    assert after.output_tokens - before.output_tokens < 3 * 1000


def test_a_disconnect_removes_a_waiting_request(server):
    crowd = [ask(server, ENDLESS | {"prompts": [f"{place} times"], "stream": True}) for place in range(20)]
    wait_until(lambda: server.counters().num_waiting >= 4)
    for connection in crowd:
        connection.close()
    wait_until(lambda: server.counters().num_running + server.counters().num_waiting == 0)


def test_a_disconnect_in_the_middle_of_a_body_costs_nothing(server):
    where = urlsplit(server.url)
    before = server.counters().num_accepted
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(b"POST /plain/complete HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    wait_until(lambda: any(record.status == 0 for record in server.records))
    assert server.counters().num_accepted == before


def test_a_blocked_reader_delays_no_other_and_gets_everything_later(server):
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)  # the system's own would hold all of it
    many = {"n": 8, "logprobs": 20, "max_tokens": 60, "temperature": 1.0, "seed": 5, "stream": True}  # some 800 KB
    slow = ask(server, ENDLESS | many, receive_bytes=65_536)
    wait_until(lambda: server.counters().num_running > 0)
    quick = server.http.post("/plain/complete", json=ENDLESS | {"max_tokens": 10})
    assert quick.status_code == 200
    wait_until(lambda: server.counters().num_running == 0, 60)  # the engine did not wait for the reader
    said = bytearray()
    while not said.endswith(b"0\r\n\r\n"):
        piece = slow.recv(1 << 16)
        assert piece, "the answer was cut off"
        said += piece
    slow.close()
    lines = [json.loads(line) for line in _body(bytes(said)).splitlines()]
    assert sum("Finish" in line for line in lines) == 8 and "usage" in lines[-1]
    told = [len(line["TextDelta"]["tokens"]) for line in lines if "TextDelta" in line]
    assert sum(told) == 8 * 60 and max(told) > 5, "what came while it did not read was put together"
    assert all(len(d["TextDelta"]["tokens"]) == len(d["TextDelta"]["logprobs"]) for d in lines if "TextDelta" in d)


def _body(response: bytes) -> bytes:
    """What is in the chunks."""
    _, _, rest = response.partition(b"\r\n\r\n")
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)
