"""The connections to one upstream. A request takes an idle one, or makes a new one."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from quire.gateway.http.connection import UpstreamConnection, UpstreamResponse
from quire.gateway.http.errors import UpstreamFailed, UpstreamSilent, UpstreamUnreachable

MAX_IDLE = 256
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files for TLS to an upstream. Without `ca`, the system's authorities are trusted."""

    ca: str | None = None
    cert: str | None = None  # of this gateway, for mutual TLS
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """The context of connections. Raises OSError or ssl.SSLError."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        context.set_alpn_protocols(["http/1.1"])
        return context


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request on its connection. `close` must be called."""

    pool: ConnectionPool
    connection: UpstreamConnection
    response: UpstreamResponse
    attempt: str = ""  # the caller's name for it
    on_close: Callable[[], None] | None = None

    @property
    def is_stale(self) -> bool:
        """Was its connection, which had been used before, closed before a byte of the response came?"""
        return self.connection.num_requests > 1 and not self.connection.is_open and not self.response.num_bytes

    def close(self) -> None:
        """Give the connection back, or close it if the response is not complete."""
        if self.on_close is not None:
            self.on_close()
        self.pool.put_back(self.connection)


class ConnectionPool:
    """Used in the event loop's thread."""

    def __init__(self, name: str, url: str, tls: TlsFiles, connect_seconds: float) -> None:
        parts = urlsplit(url)
        self._name = name
        self._host = parts.hostname or ""
        self._port = parts.port or PORTS[parts.scheme]
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._tls = tls.context() if parts.scheme == "https" else None
        self._connect_seconds = connect_seconds
        self._idle: deque[UpstreamConnection] = deque()
        self._busy: set[UpstreamConnection] = set()

    @property
    def num_busy(self) -> int:
        """Requests in progress."""
        return len(self._busy)

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> OpenRequest:
        """Send a request; its response is still to come."""
        connection = self._take_idle() or await self._connect()
        self._busy.add(connection)
        lines = [f"{method} {self._prefix}{target} HTTP/1.1", f"host: {self._authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"content-length: {len(body)}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        return OpenRequest(self, connection, connection.send(head, body) if body else connection.send(head))

    async def fetch(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"", seconds: float = 5.0
    ) -> tuple[int, bytes, dict[str, str]]:
        """Send a request and return the whole response: status, body, headers."""
        sent = None
        try:
            async with asyncio.timeout(seconds):
                sent = await self.send(method, target, headers, body)
                await sent.response.head()
                return sent.response.status, await sent.response.read_all(), sent.response.headers
        except TimeoutError:
            raise UpstreamSilent(self._name, f"has not answered {target} within {seconds:g} s") from None
        finally:
            if sent is not None:
                sent.close()

    def put_back(self, connection: UpstreamConnection) -> None:
        """A request has ended."""
        self._busy.discard(connection)
        if connection.is_idle and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def fail_all(self, error: UpstreamFailed) -> None:
        """End all requests in progress with an error: the upstream is taken for dead."""
        for connection in tuple(self._busy):
            if connection.current is not None:
                connection.current.fail(error)

    def close(self) -> None:
        """Close the idle connections; those in use close when their requests end."""
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> UpstreamConnection | None:
        while self._idle:
            connection = self._idle.pop()  # the one used last: the others may be closed by the upstream soon
            if connection.is_idle:
                return connection
        return None

    async def _connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(self._name)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            connection.close()
            raise UpstreamUnreachable(self._name, f"accepts no connection within {self._connect_seconds:g} s") from None
        except ssl.SSLError as error:
            raise UpstreamUnreachable(self._name, f"cannot be reached over TLS ({error.reason or error})") from None
        except OSError as error:
            raise UpstreamUnreachable(self._name, f"cannot be reached ({error.strerror or error})") from None
        return connection
