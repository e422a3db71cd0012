"""Push a model of the store to a registry: the layers that the registry lacks, then the manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from quire.store.blobs import Blobs
from quire.store.downloads.http import Interrupted, retry
from quire.store.errors import StoreError, Unreachable
from quire.store.layout import CHUNK
from quire.store.manifest import Manifest
from quire.store.names import OLLAMA, ModelName
from quire.store.registries.client import CONFIG_TYPE, MANIFEST_TYPE, Registry, manifest_text, registry_of
from quire.store.registries.layers import DESCRIPTION, LAYER_OF, LAYER_TYPE, RegistryLayer
from quire.store.source import Progress

SEND_BYTES = 64 << 20  # per request; a request that fails is sent again
RECEIVED = re.compile(r"0-(\d+)")  # a registry that has received nothing says 0-0
TIMEOUT = httpx.Timeout(30.0, read=600.0)  # the registry hashes the content before it responds


def push_model(manifest: Manifest, name: ModelName, blobs: Blobs, progress: Progress) -> int:
    """Push a model to the registry of `name`. Returns the number of bytes sent."""
    if name.host == OLLAMA:
        raise StoreError(
            f"{OLLAMA} accepts only models signed with an Ollama key, which Quire does not have: use `ollama push`, or "
            "push to another registry (`quire cp` the model to host/space/name first)."
        )
    config, layers = _layers(manifest, blobs)
    sent = 0
    with registry_of(name) as registry:
        for layer, what in (*layers, config):
            progress(what, 0, layer.size)
            if not registry.has(layer.digest):
                _upload(registry, layer, blobs.layout.blob(layer.digest), partial(progress, what))
                sent += layer.size
            progress(what, layer.size, layer.size)
        body = manifest_text(config[0], [layer for layer, _ in layers])
        registry.request("PUT", f"manifests/{name.tag}", content=body, headers={"Content-Type": MANIFEST_TYPE})
    return sent


def _layers(manifest: Manifest, blobs: Blobs) -> tuple[tuple[RegistryLayer, str], list[tuple[RegistryLayer, str]]]:
    """The layer with the model's description and the layers of its files, each with its file name."""
    files = [file for file in manifest.files if file.file_name != DESCRIPTION]
    unsupported = [file.file_name for file in files if file.role not in LAYER_OF]
    if unsupported or manifest.format != "gguf":
        raise StoreError(
            f"{manifest.name}:{manifest.tag} cannot be pushed: registries accept GGUF models only, without "
            f"{(unsupported or [manifest.format])[0]}. Convert it to GGUF first."
        )
    layers = [
        (RegistryLayer(LAYER_TYPE + LAYER_OF[file.role], file.digest, file.size), file.file_name) for file in files
    ]
    about = next((file for file in manifest.files if file.file_name == DESCRIPTION), None)
    digest, size = (about.digest, about.size) if about else blobs.add([_description(manifest, layers)])
    return (RegistryLayer(CONFIG_TYPE, digest, size), DESCRIPTION), layers


def _description(manifest: Manifest, layers: list[tuple[RegistryLayer, str]]) -> bytes:
    """A description as Ollama writes it for its own models."""
    fields = {
        "model_format": "gguf",
        "model_type": manifest.num_parameters,
        "file_type": manifest.quantization,
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer, _ in layers]},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class _Slice:
    """A range of a file as the body of a request. It can be read again if the registry asks for a token first."""

    path: Path
    start: int
    end: int

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.end - self.start
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk


def _upload(registry: Registry, layer: RegistryLayer, path: Path, report: Callable[[int, int], None]) -> None:
    upload = _Upload(registry, path, layer.size)

    def failure(error: Exception) -> Unreachable:
        return Unreachable(
            f"The upload of {path.name[:19]}… to {registry.host} failed ({error}): check the network and try again."
        )

    retry(lambda: upload.run(report), lambda: upload.sent, failure)
    location = upload.location.copy_merge_params({"digest": f"sha256:{layer.digest}"})
    registry.check(registry.send("PUT", str(location), timeout=TIMEOUT))


class _Upload:
    """The upload of one blob, which can be resumed."""

    def __init__(self, registry: Registry, path: Path, size: int) -> None:
        self._registry, self._path, self._size = registry, path, size
        started = registry.request("POST", "blobs/uploads/")
        self.location = started.url.join(started.headers.get("Location", ""))
        self.sent = 0
        self._is_unsure = False  # the last request failed: its bytes may have arrived

    def run(self, report: Callable[[int, int], None]) -> None:
        """Send what the registry has not received."""
        if self._is_unsure:
            self._update_sent()
        while self.sent < self._size:
            end = min(self.sent + SEND_BYTES, self._size)
            self._is_unsure = True
            self._check(
                self._request(
                    "PATCH",
                    content=_Slice(self._path, self.sent, end),
                    headers={
                        "Content-Type": "application/octet-stream",
                        "Content-Length": str(end - self.sent),
                        "Content-Range": f"{self.sent}-{end - 1}",
                    },
                )
            )
            self.sent, self._is_unsure = end, False
            report(end, self._size)

    def _update_sent(self) -> None:
        response = self._check(self._request("GET"))
        received = RECEIVED.fullmatch(response.headers.get("Range", ""))
        last = int(received[1]) if received else 0
        self.sent = last + 1 if last else 0

    def _request(self, method: str, **more: object) -> httpx.Response:
        client = self._registry.client
        return client.request(method, self.location, timeout=TIMEOUT, follow_redirects=True, **more)  # type: ignore[arg-type]

    def _check(self, response: httpx.Response) -> httpx.Response:
        """Check a response, which has the URL for the next request."""
        if response.status_code >= 500:
            raise Interrupted(f"HTTP {response.status_code}")
        self._registry.check(response)
        if "Location" in response.headers:
            self.location = response.url.join(response.headers["Location"])
        return response
