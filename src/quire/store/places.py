"""The folders in which other programs keep models on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .found import Place
from .hub_cache import HubCache
from .ollama_folder import OllamaFolder

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # on Linux it runs as a user of its own


def known_places(environ: Mapping[str, str]) -> tuple[Place, ...]:
    """As the other programs' own variables say, else where they are by default. None of them need be there."""
    home = Path.home()
    given = environ.get("OLLAMA_MODELS")
    folders = [Path(given).expanduser()] if given else [home / ".ollama" / "models", OLLAMA_SERVICE]
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub_home = Path(environ.get("HF_HOME") or cache / "huggingface")
    hub = Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or hub_home / "hub")
    return (HubCache(hub.expanduser()), *map(OllamaFolder, folders))
