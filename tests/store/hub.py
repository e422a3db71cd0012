"""The part of the model hub's HTTP API that huggingface_hub uses: repositories, access, and files. Large files are
redirected to another host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tests.store.server import Answer, Behaviour

COMMIT = "c" * 40
LARGE = 50  # bytes from which on a file is in the large-file storage
TOKEN = "hf_of_a_friend"


def publish(server: Behaviour, repository: str, files: dict[str, bytes], gated: bool = False) -> None:
    """Put a repository on the server, which becomes a hub by that."""
    hub = _hub_of(server)
    hub.files[repository], hub.gated[repository] = files, gated
    for name, body in files.items():
        place = f"/cdn/{_sha(body)}" if len(body) > LARGE else f"/{repository}/resolve/{COMMIT}/{name}"
        server.files[place] = body


def place_of(body: bytes) -> str:
    """Where the bytes of a large file really lie."""
    return f"/cdn/{_sha(body)}"


class Hub:
    """The routes that are not files."""

    def __init__(self, storage: str) -> None:
        self.storage = storage  # where large files are redirected to
        self.files: dict[str, dict[str, bytes]] = {}
        self.gated: dict[str, bool] = {}

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> Answer | None:
        if path.startswith("/cdn/"):
            return None
        for repository, files in self.files.items():
            may_read = not self.gated[repository] or headers.get("Authorization") == f"Bearer {TOKEN}"
            if path in (f"/api/models/{repository}", f"/api/models/{repository}/revision/{COMMIT}"):
                return self._json(self._info(repository))
            if path == f"/api/models/{repository}/auth-check":
                return self._json({}) if may_read else self._refusal("GatedRepo", "Access is restricted")
            if path.startswith(f"/{repository}/resolve/"):
                name = path.split("/resolve/")[1].partition("/")[2]
                if not may_read:
                    return self._refusal("GatedRepo", "Access is restricted")
                if name not in files:
                    return 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
                return self._file(method, files[name])
        return self._refusal("RepoNotFound", "Repository not found") if path.startswith("/api/") else None

    def _info(self, repository: str) -> dict:
        siblings = []
        for name, body in self.files[repository].items():
            oid = _sha(body)
            lfs = {"lfs": {"sha256": oid, "size": len(body), "pointerSize": 134}} if len(body) > LARGE else {}
            siblings.append({"rfilename": name, "size": len(body), "blobId": oid[:40], **lfs})
        page = {"id": repository, "sha": COMMIT, "siblings": siblings, "tags": ["gguf", "license:mit"]}
        return {**page, "private": False, "gated": "auto" if self.gated[repository] else False}

    def _file(self, method: str, body: bytes) -> Answer | None:
        facts = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", "ETag": f'"{_sha(body)[:40]}"'}
        if len(body) > LARGE:
            linked = {"X-Linked-Size": str(len(body)), "X-Linked-ETag": f'"{_sha(body)}"'}
            return 302, b"", {**facts, **linked, "Location": f"{self.storage}{place_of(body)}"}
        if method == "HEAD":
            return 200, b"", {**facts, "Content-Length": str(len(body))}
        return 200, body, facts

    def _json(self, page: dict) -> Answer:
        return 200, json.dumps(page).encode(), {"Content-Type": "application/json"}

    def _refusal(self, code: str, message: str) -> Answer:
        headers = {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"}
        return 401, json.dumps({"error": message}).encode(), headers


def _hub_of(server: Behaviour) -> Hub:
    if not isinstance(server.special, Hub):
        server.special = Hub(server.url.replace("127.0.0.1", "localhost"))  # as the hub does: files are elsewhere
    return server.special


def _sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
