"""Tokens: requested from the registry's token server, sent to nobody else, and renewed when refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import httpx
import pytest

from quire.store.errors import Unreachable
from quire.store.registries.auth import RegistryAuth
from quire.store.store import Store
from tests.store.server import Answer, Behaviour, serving

WEIGHTS = b"GGUF" + bytes(1000)
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()


class Guarded:
    """A registry with one model, which gives out a new token for each `/token`; blobs lie on another server."""

    def __init__(self, server: Behaviour, storage: Behaviour) -> None:
        self.server, self.storage = server, storage
        self.tokens: list[str] = []
        self.requests: list[tuple[str, str | None]] = []  # path and Authorization header
        storage.files[f"/storage/{DIGEST}"] = WEIGHTS
        storage.special = self.of_storage

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        authorization = headers.get("Authorization")
        self.requests.append((path, authorization))
        if path == "/token":
            self.tokens.append(f"token-{len(self.tokens)}")
            return 200, json.dumps({"token": self.tokens[-1]}).encode(), {}
        if not self.tokens or authorization != f"Bearer {self.tokens[-1]}":
            challenge = f'Bearer realm="{self.server.url}/token",service="toys",scope="repository:me/toy:pull"'
            return 401, b"", {"WWW-Authenticate": challenge}
        if "/manifests/" in path:
            layers = [
                {
                    "mediaType": f"application/vnd.ollama.image.{kind}",
                    "digest": f"sha256:{DIGEST}",
                    "size": len(WEIGHTS),
                }
                for kind in ("model", "license")
            ]
            return 200, json.dumps({"schemaVersion": 2, "config": layers[0], "layers": layers}).encode(), {}
        where = self.storage.url.replace("127.0.0.1", "localhost")
        return 307, b"", {"Location": f"{where}/storage/{DIGEST}"}

    def of_storage(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        self.requests.append((path, headers.get("Authorization")))


@pytest.fixture
def guarded(server):
    with serving() as storage:
        server.special = Guarded(server, storage)
        yield server.special


def test_a_token_comes_from_the_registrys_token_server_and_is_not_sent_to_redirects(guarded, server, tmp_path):
    name = server.url.removeprefix("http://") + "/me/toy"
    assert Store(tmp_path).resolve(name).read_bytes() == WEIGHTS
    assert guarded.requests[0] == ("/v2/me/toy/manifests/latest", None)
    assert guarded.requests[1] == ("/token", None)
    authorization = [header for path, header in guarded.requests if path.startswith("/storage/")]
    assert authorization and set(authorization) == {None}


def test_a_refused_token_is_renewed(guarded, server):
    with httpx.Client(auth=RegistryAuth("127.0.0.1")) as client:
        url = f"{server.url}/v2/me/toy/manifests/latest"
        assert client.get(url).is_success and client.get(url).is_success
        assert len(guarded.tokens) == 1
        guarded.tokens.append("a newer one")
        assert client.get(url).is_success and len(guarded.tokens) == 3


@pytest.mark.parametrize("answer", [(403, b"", {}), (200, b"{}", {}), (200, b"no JSON", {})])
def test_a_registry_that_gives_no_token_is_an_error(guarded, server, tmp_path, answer):
    inner = server.special
    server.special = lambda method, path, headers: answer if path == "/token" else inner(method, path, headers)
    with pytest.raises(Unreachable, match=r"refuses me/toy \(HTTP 401\)"):
        Store(tmp_path).pull(server.url.removeprefix("http://") + "/me/toy")


def test_a_registry_with_tls_cannot_name_a_token_server_without(tmp_path):
    requests = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(str(request.url))
        return httpx.Response(401, headers={"WWW-Authenticate": 'Bearer realm="http://evil.invalid/token"'})

    with httpx.Client(auth=RegistryAuth("registry.invalid"), transport=httpx.MockTransport(answer)) as client:
        assert client.get("https://registry.invalid/v2/").status_code == 401
    assert requests == ["https://registry.invalid/v2/"]


def test_the_error_message_of_a_registry_is_passed_on(server, tmp_path):
    body = json.dumps({"errors": [{"code": "TOOMANYREQUESTS", "message": "come back tomorrow"}]}).encode()
    server.special = lambda method, path, headers: (429, body, {"Content-Type": "application/json"})
    with pytest.raises(Unreachable, match="HTTP 429, come back tomorrow"):
        Store(tmp_path).pull(server.url.removeprefix("http://") + "/me/toy")


@pytest.mark.parametrize("page", [b"<html>", b"[]", b"{}", b'{"config": 1, "layers": 2}'])
def test_a_response_that_is_not_a_manifest_is_an_error(server, tmp_path, page):
    server.special = lambda method, path, headers: (200, page, {})
    with pytest.raises(Exception, match="is not a model: its manifest cannot be read"):
        Store(tmp_path).pull(server.url.removeprefix("http://") + "/me/toy")
