"""A model of the store into a registry: the layers that it does not have yet, then the manifest that names them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from .blobs import Blobs
from .download import Interrupted, insist
from .errors import StoreError, Unreachable
from .layers import ABOUT, LAYER_OF, LAYER_TYPE, Layer
from .layout import CHUNK
from .manifest import Manifest
from .names import OLLAMA, ModelName
from .registry import CONFIG_TYPE, MANIFEST_TYPE, Registry, manifest_text, registry_of
from .source import Progress

SEND_BYTES = 64 << 20  # in one request; a broken one is begun again
RECEIVED = re.compile(r"0-(\d+)")  # a registry that has nothing yet says 0-0
TIMEOUT = httpx.Timeout(30.0, read=600.0)  # it hashes what it got before it answers


def push(manifest: Manifest, name: ModelName, blobs: Blobs, progress: Progress) -> int:
    """Send a model to the registry of `name`; how many bytes had to be sent."""
    if name.host == OLLAMA:
        raise StoreError(
            f"{OLLAMA} takes models only with a signature by Ollama's own key, which Quire does not have: push with "
            "`ollama push`, or to another registry (`quire cp` the model to host/space/name first)."
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
        registry.ask("PUT", f"manifests/{name.tag}", content=body, headers={"Content-Type": MANIFEST_TYPE})
    return sent


def _layers(manifest: Manifest, blobs: Blobs) -> tuple[tuple[Layer, str], list[tuple[Layer, str]]]:
    """The model's description and its layers, each with the name of its file."""
    files = [file for file in manifest.files if file.file_name != ABOUT]
    strange = [file.file_name for file in files if file.role not in LAYER_OF]
    if strange or manifest.format != "gguf":
        raise StoreError(
            f"{manifest.name}:{manifest.tag} cannot be pushed: registries of this kind take GGUF models, and "
            f"{(strange or [manifest.format])[0]} has no place there."
        )
    layers = [(Layer(LAYER_TYPE + LAYER_OF[file.role], file.digest, file.size), file.file_name) for file in files]
    about = next((file for file in manifest.files if file.file_name == ABOUT), None)
    digest, size = (about.digest, about.size) if about else blobs.add([_description(manifest, layers)])
    return (Layer(CONFIG_TYPE, digest, size), ABOUT), layers


def _description(manifest: Manifest, layers: list[tuple[Layer, str]]) -> bytes:
    """What Ollama keeps about a model that it made itself."""
    said = {
        "model_format": "gguf",
        "model_type": manifest.num_parameters,
        "file_type": manifest.quantization,
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer, _ in layers]},
    }
    return json.dumps(said, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class _Slice:
    """Bytes of a file as the body of a request. It can be read again, should the registry want to see a token first."""

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


def _upload(registry: Registry, layer: Layer, path: Path, report: Callable[[int, int], None]) -> None:
    upload = _Upload(registry, path, layer.size)

    def failure(error: Exception) -> Unreachable:
        return Unreachable(
            f"{registry.host} did not take {path.name[:19]}… ({error}): check the network and try again."
        )

    insist(lambda: upload.run(report), lambda: upload.sent, failure)
    place = upload.place.copy_merge_params({"digest": f"sha256:{layer.digest}"})
    registry.judge(registry.send("PUT", str(place), timeout=TIMEOUT))


class _Upload:
    """One blob on its way."""

    def __init__(self, registry: Registry, path: Path, size: int) -> None:
        self._registry, self._path, self._size = registry, path, size
        begun = registry.ask("POST", "blobs/uploads/")
        self.place = begun.url.join(begun.headers.get("Location", ""))
        self.sent = 0
        self._is_unsure = False  # whether the last bytes arrived

    def run(self, report: Callable[[int, int], None]) -> None:
        """Send what is missing."""
        if self._is_unsure:
            self._ask_how_far()
        while self.sent < self._size:
            end = min(self.sent + SEND_BYTES, self._size)
            self._is_unsure = True
            self._take(
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

    def _ask_how_far(self) -> None:
        answer = self._take(self._request("GET"))
        received = RECEIVED.fullmatch(answer.headers.get("Range", ""))
        last = int(received[1]) if received else 0
        self.sent = last + 1 if last else 0

    def _request(self, method: str, **more: object) -> httpx.Response:
        client = self._registry.client
        return client.request(method, self.place, timeout=TIMEOUT, follow_redirects=True, **more)  # type: ignore[arg-type]

    def _take(self, answer: httpx.Response) -> httpx.Response:
        """A good answer says where to go on."""
        if answer.status_code >= 500:
            raise Interrupted(f"HTTP {answer.status_code}")
        self._registry.judge(answer)
        if "Location" in answer.headers:
            self.place = answer.url.join(answer.headers["Location"])
        return answer
