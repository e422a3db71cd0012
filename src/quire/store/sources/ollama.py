"""Models of registries with Ollama's protocol: ollama.com, or any OCI registry that has a model."""

from __future__ import annotations

from pathlib import Path

from quire.store.downloads.ranges import download_in_ranges
from quire.store.errors import ModelNotFound, StoreError
from quire.store.names import ModelName, parse_name
from quire.store.registries.client import Registry, registry_of
from quire.store.registries.layers import DESCRIPTION, MAX_TEXT, RegistryLayer, description_fields, file_names
from quire.store.source import ModelOffer, Progress, SourceFile


class Ollama:
    """All registries: the name has the host."""

    def claims(self, name: ModelName) -> bool:
        """Names with a host. The store adds the configured one to names without."""
        return name.kind == "registry" and bool(name.host)

    def offer(self, name: ModelName) -> ModelOffer:
        """The layers of the manifest, with the facts from the model's description."""
        with registry_of(name) as registry:
            config, layers = registry.manifest()
            for layer in layers:
                if layer.role is None:
                    raise StoreError(
                        f"{name} has a layer of type {layer.media_type}, which Quire does not support: choose a GGUF "
                        "version of the model, here or on the model hub."
                    )
            if not any(layer.role == "weights" for layer in layers):
                raise ModelNotFound(f"{name} has no weights: choose another model.")
            about = _description(registry, config)
        files = [
            SourceFile(str(layer.role), file_name, layer.digest, str(name), layer.digest, layer.size)
            for layer, file_name in zip(layers, file_names(name, layers), strict=True)
        ]
        files.append(SourceFile("config", DESCRIPTION, config.digest, str(name), config.digest, config.size))
        return ModelOffer(
            source=str(name).removesuffix(f":{name.tag}"),
            files=tuple(files),
            format="gguf",
            quantization=about.get("file_type", ""),
            num_parameters=about.get("model_type", ""),
        )

    def fetch(self, file: SourceFile, partial: Path, progress: Progress) -> None:
        """Download in ranges. Redirects to another host are followed without our token."""
        with registry_of(parse_name(file.location)) as registry:
            remote = registry.blob(file.digest or "", file.file_name)
            download_in_ranges(remote, partial, file.size, progress)


def _description(registry: Registry, config: RegistryLayer) -> dict[str, str]:
    """The text fields of the model's description."""
    if config.size > MAX_TEXT:
        return {}
    response = registry.send("GET", registry.url(f"blobs/sha256:{config.digest}"))
    return description_fields(response.content) if response.is_success else {}


SOURCE = Ollama()
