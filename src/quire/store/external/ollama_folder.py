"""Ollama's folder of models: manifests by host, name space, name and tag, and blobs by content.

manifests/registry.ollama.ai/library/llama3.2/1b      JSON, as in a registry
blobs/sha256-<hex>
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire.store.errors import BadName
from quire.store.external.model import ExternalFile, ExternalModel
from quire.store.layout import DIGEST_PREFIX
from quire.store.names import DEFAULT_NAMESPACE, HUB, OLLAMA, ModelName, parse_name
from quire.store.registries.layers import (
    DESCRIPTION,
    MAX_TEXT,
    RegistryLayer,
    description_fields,
    file_names,
    parse_layers,
)
from quire.store.source import ModelOffer

HOSTS = {OLLAMA: "registry.ollama.ai"}  # the name of its folder
PROGRAM = "Ollama"


@dataclass(frozen=True, slots=True)
class OllamaFolder:
    """One such folder; it need not exist."""

    folder: Path

    def find(self, name: ModelName) -> ExternalModel | None:
        """The model with this name of the hub or of a registry."""
        host = HUB if name.kind == "hub" else name.host.partition("://")[2] or name.host
        path = self.folder.joinpath("manifests", HOSTS.get(host, host), *name.name.split("/"), name.tag)
        return self._read(path, name) if host else None

    def all(self) -> Iterator[ExternalModel]:
        """Every model, by its path."""
        for path in sorted((self.folder / "manifests").glob("*/*/*/*")):
            with suppress(BadName):
                if found := self._read(path, _name_of(*path.parts[-4:])):
                    yield found

    def blob(self, digest: str) -> Path | None:
        """The file with this sha256."""
        path = self.folder / "blobs" / f"{DIGEST_PREFIX}{digest}"
        return path if path.is_file() else None

    def _read(self, path: Path, name: ModelName) -> ExternalModel | None:
        """The model of a manifest. None: it cannot be read, has a layer of an unknown type, or lacks a file."""
        try:
            if path.stat().st_size > MAX_TEXT:
                return None
            config, layers = parse_layers(json.loads(path.read_bytes()))
            about = self._description(config)
            pairs = zip(layers, file_names(name, layers), strict=True)
            files = tuple(
                ExternalFile(str(layer.role), file, self._complete_blob(layer), layer.digest) for layer, file in pairs
            )
            files += (ExternalFile("config", DESCRIPTION, self._complete_blob(config), config.digest),)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not any(file.role == "weights" for file in files):
            return None
        offer = ModelOffer(
            source=f"{PROGRAM}'s models in {self.folder}",
            format="gguf",
            quantization=about.get("file_type", ""),
            num_parameters=about.get("model_type", ""),
        )
        ollama_name = name.name.removeprefix(f"{DEFAULT_NAMESPACE}/") if name.host == OLLAMA else str(name.untagged)
        return ExternalModel(name, PROGRAM, self.folder, files, offer, f"`ollama rm {ollama_name}:{name.tag}`")

    def _description(self, config: RegistryLayer) -> dict[str, str]:
        """The text fields of the model's description."""
        blob = self.blob(config.digest)
        return {} if blob is None or config.size > MAX_TEXT else description_fields(blob.read_bytes())

    def _complete_blob(self, layer: RegistryLayer) -> Path:
        blob = self.blob(layer.digest)
        if blob is None or blob.stat().st_size != layer.size:
            raise FileNotFoundError(layer.digest)
        return blob


def _name_of(host: str, space: str, word: str, tag: str) -> ModelName:
    """Our name for the model of a manifest, by the parts of its path."""
    if host == HOSTS[OLLAMA]:
        host = OLLAMA
        if space == DEFAULT_NAMESPACE:
            return parse_name(f"{word}:{tag}")
    return parse_name(f"{host}/{space}/{word}:{tag}")
