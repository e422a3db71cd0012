"""A push that breaks in the middle is resumed. (Pushes to a real registry: test_registry.py.)"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

import pytest

from quire.store.errors import Unreachable
from quire.store.model_files import NewFile
from quire.store.store import Store
from tests.store.server import Answer, Behaviour

WEIGHTS = b"GGUF" + random.Random(9).randbytes(300_000)
PIECE = 100_000


class Forgetful:
    """An empty registry that accepts only a part of some requests."""

    def __init__(self, server: Behaviour) -> None:
        self.server = server
        self.failures: dict[int, int] = {}  # number of a PATCH -> how many of its bytes are kept before the 503
        self.taken, self.num_patches, self.manifests = b"", 0, 0
        self.blobs: dict[str, bytes] = {}

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        where = {"Location": "/v2/me/toy/blobs/uploads/one?state=x"}
        match method:
            case "POST":
                self.taken = b""
                return 202, b"", where
            case "PATCH":
                return self.patch(headers, where)
            case "GET" if "/uploads/" in path:
                return 204, b"", {**where, "Range": f"0-{max(len(self.taken) - 1, 0)}"}
            case "PUT" if "/uploads/" in path:
                assert "state=x" in path
                self.blobs[path.partition("digest=sha256%3A")[2].partition("&")[0]] = self.taken
                return 201, b"", {}
            case "PUT":
                self.manifests += 1
                return 201, b"", {}
        return 404, b"", {}

    def patch(self, headers: Mapping[str, str], where: dict[str, str]) -> Answer:
        self.num_patches += 1
        start, end = map(int, headers["Content-Range"].split("-"))
        assert start == len(self.taken) and end + 1 - start == len(self.server.body)
        kept = self.failures.get(self.num_patches)
        self.taken += self.server.body[:kept]
        return (202, b"", where) if kept is None else (503, b"", {})


@pytest.fixture
def registry(server, monkeypatch) -> Forgetful:
    monkeypatch.setattr("quire.store.registries.push.SEND_BYTES", PIECE)
    server.special = Forgetful(server)
    return server.special


@pytest.fixture
def store(tmp_path, server, registry) -> Store:
    store = Store(tmp_path, registry=server.url)
    store.create("me/toy", [NewFile("weights", "toy.gguf", WEIGHTS)])
    return store


@pytest.mark.parametrize("kept", [0, 1000, PIECE])
def test_a_failed_upload_is_resumed_where_the_registry_stopped(store, registry, kept):
    registry.failures = {2: kept, 3: 0}
    store.push("me/toy")
    assert registry.blobs[hashlib.sha256(WEIGHTS).hexdigest()] == WEIGHTS and registry.manifests == 1


def test_a_registry_that_accepts_nothing_gets_no_manifest(store, registry):
    registry.failures = dict.fromkeys(range(1, 100), 0)
    with pytest.raises(Unreachable, match="HTTP 503"):
        store.push("me/toy")
    assert registry.manifests == 0
