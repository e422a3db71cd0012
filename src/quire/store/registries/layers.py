"""The layers of a model in Ollama's format: their roles and file names.

Registries and Ollama's own folder both list them in a manifest, which is JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.store.manifest import DIGEST
from quire.store.names import ModelName

DESCRIPTION = "image.json"  # our file name for the model's description, kept so that a push sends what a pull fetched
LAYER_TYPE = "application/vnd.ollama.image."
ROLE_OF = {  # by type of layer
    **{word: word for word in ("template", "system", "params", "messages", "license", "adapter", "projector")},
    "model": "weights",
    "prompt": "template",  # in early models
}
LAYER_OF = {role: layer for layer, role in ROLE_OF.items() if layer != "prompt"}
FILE_NAMES = {
    "template": "template.txt",
    "system": "system.txt",
    "params": "params.json",
    "messages": "messages.json",
    "license": "license.txt",
    "adapter": "adapter.gguf",
    "projector": "projector.gguf",
}
MAX_TEXT = 4 << 20  # bytes of a manifest or a description


@dataclass(frozen=True, slots=True)
class RegistryLayer:
    """An entry of a manifest: one file of a model."""

    media_type: str
    digest: str  # 64 hex digits
    size: int

    @property
    def role(self) -> str | None:
        """The role of the file. None: the type is unknown."""
        return ROLE_OF.get(self.media_type.removeprefix(LAYER_TYPE))

    def to_json(self) -> dict[str, Any]:
        """The entry of a manifest."""
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.size}


def parse_layers(manifest: Mapping[str, Any]) -> tuple[RegistryLayer, tuple[RegistryLayer, ...]]:
    """The layer with the model's description, and the layers of its files.

    Raises ValueError, KeyError or TypeError if the manifest is malformed.
    """
    layers = tuple(_layer(entry) for entry in manifest["layers"])
    return _layer(manifest["config"]), layers


def file_names(name: ModelName, layers: Sequence[RegistryLayer]) -> list[str]:
    """A file name for each layer. Several with one role are numbered; weights as the parts of a split GGUF file."""
    totals, seen, names = Counter(layer.role for layer in layers), Counter[str | None](), []
    stem = f"{name.name.rpartition('/')[2]}-{name.tag}"
    for layer in layers:
        seen[layer.role] += 1
        number, total = seen[layer.role], totals[layer.role]
        if layer.role == "weights":
            names.append(f"{stem}-{number:05}-of-{total:05}.gguf" if total > 1 else f"{stem}.gguf")
        else:
            first = Path(FILE_NAMES[str(layer.role)])
            names.append(f"{first.stem}-{number}{first.suffix}" if total > 1 else first.name)
    return names


def description_fields(content: bytes) -> dict[str, str]:
    """The text fields of a model's description. They are only shown, so an unreadable description has none."""
    try:
        fields = json.loads(content)
    except ValueError:
        return {}
    pairs = fields.items() if isinstance(fields, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _layer(entry: Mapping[str, Any]) -> RegistryLayer:
    digest, size = entry["digest"].removeprefix("sha256:"), entry["size"]
    if not DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
        raise ValueError("a layer has no sha256 or no size")
    return RegistryLayer(str(entry["mediaType"]), digest, size)
