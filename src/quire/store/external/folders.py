"""The folders in which other programs keep models on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quire.store.external.hub_cache import HubCache
from quire.store.external.model import ExternalFolder
from quire.store.external.ollama_folder import OllamaFolder

OLLAMA_SERVICE_FOLDER = Path("/usr/share/ollama/.ollama/models")  # where it runs as a system user, on Linux


def external_folders(environ: Mapping[str, str]) -> tuple[ExternalFolder, ...]:
    """The folders that the other programs' environment variables name, or else their defaults. They need not exist."""
    home = Path.home()
    ollama = environ.get("OLLAMA_MODELS")
    folders = [Path(ollama).expanduser()] if ollama else [home / ".ollama" / "models", OLLAMA_SERVICE_FOLDER]
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub_home = Path(environ.get("HF_HOME") or cache / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or hub_home / "hub")
    return (HubCache(hub.expanduser()), *map(OllamaFolder, folders))
