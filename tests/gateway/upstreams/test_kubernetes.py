"""Endpoints of a service of Kubernetes, from a stub of its API."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from quire.gateway.upstreams.declared import KubernetesService
from quire.gateway.upstreams.kubernetes import watch_service
from tests.gateway.certificates import make_certificates

pytestmark = pytest.mark.e2e


class ApiServer(BaseHTTPRequestHandler):
    """A stub of the Kubernetes API: a list of slices, and a watch with what the test adds."""

    slices: ClassVar[list[Any]] = []
    events: ClassVar[list[Any]] = []
    tokens: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers["authorization"])
        assert "labelSelector=kubernetes.io%2Fservice-name%3Dquire" in self.path
        assert self.path.startswith("/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices?")
        self.send_response(200)
        self.end_headers()
        if "watch=1" not in self.path:
            listed = {"metadata": {"resourceVersion": "7"}, "items": self.slices}
            self.wfile.write(json.dumps(listed).encode())
            return
        assert "resourceVersion=7" in self.path
        while self.events:
            self.wfile.write(json.dumps(self.events.pop(0)).encode() + b"\n")
            self.wfile.flush()
            time.sleep(0.05)

    def log_message(self, *arguments: Any) -> None: ...


def slice_of(name: str, *addresses: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "ports": [{"port": 80}], "endpoints": [{"addresses": [a]} for a in addresses]}


@contextmanager
def api_server(*slices: dict[str, Any], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A stub of the Kubernetes API; gives its address."""
    ApiServer.slices, ApiServer.events, ApiServer.tokens = list(slices), [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    if tls is not None:
        # each connection shakes hands in its own thread: a client that leaves in between stops no other
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_endpoints_of_kubernetes_are_listed_and_watched(tmp_path):
    (tmp_path / "token").write_text("pod-token\n")
    (tmp_path / "namespace").write_text("ml")
    seen: list[list[str]] = []

    async def scene(api: str) -> None:
        service = KubernetesService("quire", api=api, token_file=str(tmp_path / "token"))
        task = asyncio.create_task(
            watch_service(service, lambda specs: seen.append([s.url for s in specs]), pause=0.05)
        )
        while ["http://10.0.0.3:80"] not in seen:
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with api_server(slice_of("a", "10.0.0.1")) as api:
        ApiServer.events = [
            {"type": "ADDED", "object": slice_of("b", "10.0.0.2", "10.0.0.3")},
            {"type": "MODIFIED", "object": slice_of("b", "10.0.0.3")},
            {"type": "BOOKMARK", "object": slice_of("x")},
            {"type": "DELETED", "object": slice_of("a")},
        ]
        asyncio.run(asyncio.wait_for(scene(api), 20))
    one, two, three = (f"http://10.0.0.{n}:80" for n in (1, 2, 3))
    assert seen[:5] == [[one], [one, two, three], [one, three], [one, three], [three]]
    assert set(ApiServer.tokens) == {"Bearer pod-token"}


def test_the_kubernetes_api_must_have_a_certificate_of_the_given_authority(tmp_path, caplog):
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
        make_certificates(tmp_path / name)
    for name, text in (("token", "first\n"), ("namespace", "ml"), ("ca", (tmp_path / "wrong" / "ca.pem").read_text())):
        (tmp_path / name).write_text(text)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "right" / "server.pem", tmp_path / "right" / "server.key")
    seen: list[Any] = []

    async def until(is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0.02)

    async def scene(api: str) -> None:
        service = KubernetesService("quire", api=api, token_file=str(tmp_path / "token"), ca_file=str(tmp_path / "ca"))
        task = asyncio.create_task(watch_service(service, seen.append, pause=0.5))
        await until(lambda: "certificate verify failed" in caplog.text)
        assert not seen and not ApiServer.tokens  # the token was not sent
        (tmp_path / "ca").write_text((tmp_path / "right" / "ca.pem").read_text())
        await until(lambda: bool(seen) and "Bearer first" in ApiServer.tokens)
        (tmp_path / "token").write_text("second\n")  # Kubernetes replaces tokens
        await until(lambda: ApiServer.tokens[-1] == "Bearer second")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with warnings.catch_warnings():  # asyncio leaves the transport of a failed handshake to the collector
        warnings.simplefilter("ignore", ResourceWarning)
        with api_server(slice_of("a", "10.0.0.1"), tls=context) as api:
            asyncio.run(asyncio.wait_for(scene(api), 20))
        assert [each.url for each in seen[0]] == ["http://10.0.0.1:80"]
        gc.collect()
