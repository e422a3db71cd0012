"""Folders of models as other programs lay them out: Ollama's, and the cache of the model hub's library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 64  # bytes from which on the hub has a file in its large-file storage, whose ids are sha256


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def ollama_model(
    folder: Path, name: str, tag: str, layers: Sequence[tuple[str, bytes]], host: str = "registry.ollama.ai"
) -> Path:
    """Lay out a model as `ollama pull` does: layers are (kind, bytes). The path of its manifest."""
    about = json.dumps({"model_format": "gguf", "model_type": "1.2B", "file_type": "Q4_K_M"}).encode()
    blobs, manifest = folder / "blobs", folder / "manifests" / host / name / tag
    blobs.mkdir(parents=True, exist_ok=True)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    for body in (about, *(body for _, body in layers)):
        (blobs / f"sha256-{sha256(body)}").write_bytes(body)
    described = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{sha256(body)}", "size": len(body)}
        for kind, body in layers
    ]
    config = {"mediaType": "application/vnd.docker.container.image.v1+json"}
    config |= {"digest": f"sha256:{sha256(about)}", "size": len(about)}
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": config, "layers": described}))
    return manifest


def hub_model(folder: Path, repository: str, files: Mapping[str, bytes], ref: bool = True) -> Path:
    """Lay out a repository as `hf download` does. The folder of its snapshot."""
    home = folder / f"models--{repository.replace('/', '--')}"
    snapshot = home / "snapshots" / COMMIT
    (home / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        git_id = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        blob = home / "blobs" / (sha256(body) if len(body) >= LARGE else git_id)
        blob.write_bytes(body)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = Path(*[".."] * (2 + name.count("/")))
        link.symlink_to(up / "blobs" / blob.name)
    if ref:
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / "main").write_text(COMMIT)
    return snapshot
