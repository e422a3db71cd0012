"""The layers of a model in Ollama's form: what each is for, and what its file is called. Registries and Ollama's own
folder both name them in a manifest, which is JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .manifest import DIGEST
from .names import ModelName

ABOUT = "image.json"  # how we call what that says about a model; kept, so that a push brings back what a pull brought
LAYER_TYPE = "application/vnd.ollama.image."
ROLE_OF = {  # layer -> role of a file
    **{word: word for word in ("template", "system", "params", "messages", "license", "adapter", "projector")},
    "model": "weights",
    "prompt": "template",  # as early models have it
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
MAX_TEXT = 4 << 20  # of a manifest or an image's description


@dataclass(frozen=True, slots=True)
class Layer:
    """One file of a model, as a manifest names it."""

    media_type: str
    digest: str  # 64 hex digits
    size: int

    @property
    def role(self) -> str | None:
        """What the file is for. None: we do not know this kind."""
        return ROLE_OF.get(self.media_type.removeprefix(LAYER_TYPE))

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest."""
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": self.size}


def layers_of(said: Mapping[str, Any]) -> tuple[Layer, tuple[Layer, ...]]:
    """The layer that describes the model, and those that it consists of. ValueError, KeyError or TypeError: neither."""
    layers = tuple(_layer(each) for each in said["layers"])
    return _layer(said["config"]), layers


def file_names(name: ModelName, layers: Sequence[Layer]) -> list[str]:
    """One for each layer; several of a kind are numbered, weights as the parts of a split GGUF file are."""
    of_kind, seen, names = Counter(layer.role for layer in layers), Counter[str | None](), []
    stem = f"{name.name.rpartition('/')[2]}-{name.tag}"
    for layer in layers:
        seen[layer.role] += 1
        number, total = seen[layer.role], of_kind[layer.role]
        if layer.role == "weights":
            names.append(f"{stem}-{number:05}-of-{total:05}.gguf" if total > 1 else f"{stem}.gguf")
        else:
            first = Path(FILE_NAMES[str(layer.role)])
            names.append(f"{first.stem}-{number}{first.suffix}" if total > 1 else first.name)
    return names


def _layer(said: Mapping[str, Any]) -> Layer:
    digest, size = said["digest"].removeprefix("sha256:"), said["size"]
    if not DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
        raise ValueError("a layer has no sha256 or no size")
    return Layer(str(said["mediaType"]), digest, size)
