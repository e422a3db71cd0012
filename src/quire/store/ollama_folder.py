"""Ollama's own folder of models: manifests by host, space, name and tag, and blobs by content.

manifests/registry.ollama.ai/library/llama3.2/1b      JSON, as a registry gives it
blobs/sha256-<hex>
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BadName
from .found import Found, FoundFile
from .layers import ABOUT, MAX_TEXT, Layer, file_names, layers_of
from .layout import DIGEST_PREFIX
from .names import DEFAULT_NAMESPACE, HUB, OLLAMA, ModelName, parse_name
from .source import Offer

HOSTS = {OLLAMA: "registry.ollama.ai"}  # as that one is called in the folder
KEEPER = "Ollama"


@dataclass(frozen=True, slots=True)
class OllamaFolder:
    """One such folder; it need not be there."""

    folder: Path

    def find(self, name: ModelName) -> Found | None:
        """The model under a name of the hub or of a registry."""
        host = HUB if name.kind == "hub" else name.host.partition("://")[2] or name.host
        path = self.folder.joinpath("manifests", HOSTS.get(host, host), *name.name.split("/"), name.tag)
        return self._read(path, name) if host else None

    def all(self) -> Iterator[Found]:
        """Every model, by its path."""
        for path in sorted((self.folder / "manifests").glob("*/*/*/*")):
            with suppress(BadName):
                if found := self._read(path, _name_of(*path.parts[-4:])):
                    yield found

    def blob(self, digest: str) -> Path | None:
        """The file with this sha256."""
        path = self.folder / "blobs" / f"{DIGEST_PREFIX}{digest}"
        return path if path.is_file() else None

    def _read(self, path: Path, name: ModelName) -> Found | None:
        """The model of a manifest. None: it cannot be read, has a layer of an unknown kind, or lacks a file."""
        try:
            if path.stat().st_size > MAX_TEXT:
                return None
            config, layers = layers_of(json.loads(path.read_bytes()))
            about = self._about(config)
            named = zip(layers, file_names(name, layers), strict=True)
            files = tuple(FoundFile(str(layer.role), file, self._whole(layer), layer.digest) for layer, file in named)
            files += (FoundFile("config", ABOUT, self._whole(config), config.digest),)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not any(file.role == "weights" for file in files):
            return None
        offer = Offer(
            source=f"{KEEPER}'s models in {self.folder}",
            format="gguf",
            quantization=about.get("file_type", ""),
            num_parameters=about.get("model_type", ""),
        )
        shown = name.name.removeprefix(f"{DEFAULT_NAMESPACE}/") if name.host == OLLAMA else str(name.untagged)
        return Found(name, KEEPER, self.folder, files, offer, f"`ollama rm {shown}:{name.tag}`")

    def _about(self, config: Layer) -> dict[str, str]:
        """The words of the image's description."""
        blob = self.blob(config.digest)
        if blob is None or config.size > MAX_TEXT:
            return {}
        said: Any = json.loads(blob.read_bytes())
        return {key: value for key, value in said.items() if isinstance(value, str)}

    def _whole(self, layer: Layer) -> Path:
        blob = self.blob(layer.digest)
        if blob is None or blob.stat().st_size != layer.size:
            raise FileNotFoundError(layer.digest)
        return blob


def _name_of(host: str, space: str, word: str, tag: str) -> ModelName:
    """What a manifest's path means to us."""
    if host == HOSTS[OLLAMA]:
        host = OLLAMA
        if space == DEFAULT_NAMESPACE:
            return parse_name(f"{word}:{tag}")
    return parse_name(f"{host}/{space}/{word}:{tag}")
