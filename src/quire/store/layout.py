"""The folders below QUIRE_HOME, and two ways to write a file atomically.

blobs/sha256-<hex>             the files of all models, by content; read-only
manifests/<name>/<tag>.json    the files of one model (hub: manifests/hf.co/<org>/<repo>/<tag>.json; registry:
                               manifests/<host>+<port>/<space>/<name>/<tag>.json, with "+" alone for no host)
views/<hex>/<file name>        a manifest's files under their published names: links to blobs
partial/<key>                  unfinished downloads; the next pull resumes them
locks/<key>.lock               held by the process that is writing
lowered/<file>-<key>.lowered   weights in a device's layout: written by engines, removed here with the blob
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quire.types.lowered import FOLDER

from .errors import explain_write_errors

CHUNK = 1 << 20
DIGEST_PREFIX = "sha256-"


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one store."""

    home: Path

    @property
    def blobs(self) -> Path:
        return self.home / "blobs"

    @property
    def manifests(self) -> Path:
        return self.home / "manifests"

    @property
    def views(self) -> Path:
        return self.home / "views"

    @property
    def partial(self) -> Path:
        return self.home / "partial"

    @property
    def lowered(self) -> Path:
        return self.home / FOLDER

    @property
    def locks(self) -> Path:
        return self.home / "locks"

    def blob(self, digest: str) -> Path:
        """The file with this content; `digest` is 64 hex digits."""
        return self.blobs / f"{DIGEST_PREFIX}{digest}"

    def make(self) -> None:
        """Create the folders."""
        with explain_write_errors(self.home):
            for folder in (self.blobs, self.manifests, self.views, self.partial, self.locks):
                folder.mkdir(parents=True, exist_ok=True)


def digest_of(path: Path, progress: Callable[[int], None] = lambda done: None) -> str:
    """The sha256 of a file, 64 hex digits."""
    state, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            state.update(chunk)
            done += len(chunk)
            progress(done)
    return state.hexdigest()


def publish(temporary: Path, path: Path) -> None:
    """Rename a finished file into place, after its content has reached the disk."""
    with explain_write_errors(path.parent):
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file atomically: a reader sees the old content or the new."""
    with explain_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            publish(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only once the folder is synced too, which only POSIX systems allow."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
