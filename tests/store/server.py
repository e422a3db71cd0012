"""A small HTTP server of files with configurable faults. It uses real sockets, so the real client is tested."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes, dict[str, str]]  # code, body, headers


@dataclass
class Behaviour:
    """The files and the faults of a server. Requests are recorded as (path, range or None)."""

    files: dict[str, bytes] = field(default_factory=dict)  # path -> content
    types: dict[str, str] = field(default_factory=dict)  # path -> content type
    drops: list[int] = field(default_factory=list)  # the next answers to files end after this many bytes of body
    failures: list[int] = field(default_factory=list)  # the next answers to files have these codes
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    stall: int | None = None  # answers to files pause after this many bytes of body
    stall_from: int = 0  # answers that begin before this byte do not
    go_on: threading.Event = field(default_factory=threading.Event)  # ends the pauses
    special: Callable[[str, str, Mapping[str, str]], Answer | None] | None = None  # tried first: method, path, headers
    body: bytes = b""  # that was sent to us last
    url: str = ""

    def ranges_of(self, path: str) -> list[str | None]:
        return [span for requested, span in self.requests if requested == path]


def span_of(span: str, size: int) -> tuple[int, int]:
    """The first byte of "bytes=a-b" or "bytes=a-", and the one after the last."""
    start, _, end = span.removeprefix("bytes=").partition("-")
    return int(start), min(int(end) + 1, size) if end else size


@contextmanager
def serving() -> Iterator[Behaviour]:
    behaviour = Behaviour()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, span = self.path.split("?")[0], self.headers.get("Range")
            if self.command == "GET":
                behaviour.requests.append((path, span))
            if behaviour.special and (answer := behaviour.special(self.command, path, self.headers)):
                self.answer(*answer)
                return
            body = behaviour.files.get(path)
            is_file = not behaviour.types.get(path, "").startswith(("text/html", "application/json"))
            if body is None:
                self.answer(404, b"", {})
            elif is_file and behaviour.failures:
                self.answer(behaviour.failures.pop(0), b"", {})
            else:
                self.send_file(path, body, span, is_file)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            behaviour.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = behaviour.special and behaviour.special(self.command, self.path, self.headers)
            self.answer(*(answer or (405, b"", {})))

        do_PATCH = do_PUT = do_POST

        def send_file(self, path: str, body: bytes, span: str | None, is_file: bool) -> None:
            headers, code = {"Content-Type": behaviour.types.get(path, "application/octet-stream")}, 200
            start = 0
            if span and behaviour.ranges:
                start, end = span_of(span, len(body))
                if start >= len(body):
                    self.answer(416, b"", {"Content-Range": f"bytes */{len(body)}"})
                    return
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(body)}"
                code, body = 206, body[start:end]
            drop = behaviour.drops.pop(0) if is_file and behaviour.drops else None
            may_stall = is_file and start >= behaviour.stall_from
            self.answer(code, body, headers, drop, behaviour.stall if may_stall else None)

        def answer(
            self, code: int, body: bytes, headers: dict[str, str], drop: int | None = None, stall: int | None = None
        ) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if code < 300 and stall is not None and len(body) > stall:
                self.wfile.write(body[:stall])
                behaviour.go_on.wait(30)
                body, drop = body[stall:], None
            self.wfile.write(body if drop is None else body[:drop])
            if drop is not None:
                self.close_connection = True  # in the middle of what was promised

        def log_message(self, *args: object) -> None:
            pass

    connections: set[socket.socket] = set()

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # so that closing it waits for them

        def process_request(self, request: socket.socket, client_address: object) -> None:
            connections.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: socket.socket) -> None:
            connections.discard(request)
            super().shutdown_request(request)

        def hang_up(self) -> None:
            """Close the connections that clients keep open."""
            for each in tuple(connections):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    behaviour.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield behaviour
    finally:
        behaviour.go_on.set()
        server.shutdown()
        server.hang_up()
        server.server_close()
        thread.join()
