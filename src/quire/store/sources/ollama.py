"""Models of registries that speak Ollama's protocol: ollama.com, or any OCI registry that holds a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.store.errors import ModelNotFound, StoreError
from quire.store.layers import ABOUT, MAX_TEXT, Layer, file_names
from quire.store.names import ModelName, parse_name
from quire.store.ranges import download_in_ranges
from quire.store.registry import Registry, registry_of
from quire.store.source import Offer, Progress, Wanted


class Ollama:
    """Every registry that a name can say."""

    def claims(self, name: ModelName) -> bool:
        """Names with a host; the store gives one to those without."""
        return name.kind == "registry" and bool(name.host)

    def offer(self, name: ModelName) -> Offer:
        """The layers of the manifest, and what the image's description says about them."""
        with registry_of(name) as registry:
            config, layers = registry.manifest()
            for layer in layers:
                if layer.role is None:
                    raise StoreError(
                        f"{name} has a layer of the kind {layer.media_type}, which Quire does not know: look for the "
                        "same model as GGUF, on the model hub or here."
                    )
            if not any(layer.role == "weights" for layer in layers):
                raise ModelNotFound(f"{name} has no weights to run: choose another model.")
            about = _about(registry, config)
        wanted = [
            Wanted(str(layer.role), file_name, layer.digest, str(name), layer.digest, layer.size)
            for layer, file_name in zip(layers, file_names(name, layers), strict=True)
        ]
        wanted.append(Wanted("config", ABOUT, config.digest, str(name), config.digest, config.size))
        return Offer(
            source=str(name).removesuffix(f":{name.tag}"),
            files=tuple(wanted),
            format="gguf",
            quantization=about.get("file_type", ""),
            num_parameters=about.get("model_type", ""),
        )

    def fetch(self, wanted: Wanted, partial: Path, progress: Progress) -> None:
        """In ranges; a redirect to where the bytes really lie is followed without our token."""
        with registry_of(parse_name(wanted.place)) as registry:
            address = registry.blob(wanted.digest or "", wanted.file_name)
            download_in_ranges(address, partial, wanted.size, progress)


def _about(registry: Registry, config: Layer) -> dict[str, str]:
    """The words of the image's description. It is for people: one that we cannot read is no obstacle."""
    if config.size > MAX_TEXT:
        return {}
    answer = registry.send("GET", registry.url(f"blobs/sha256:{config.digest}"))
    try:
        said: Any = json.loads(answer.content) if answer.is_success else {}
    except ValueError:
        return {}
    pairs = said.items() if isinstance(said, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


SOURCE = Ollama()
