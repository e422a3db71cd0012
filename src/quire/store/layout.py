"""Where things lie below QUIRE_HOME, and the two ways that a file gets there: whole or not at all.

blobs/sha256-<hex>             the files of all models, by content; read-only once they are there
manifests/<name>/<tag>.json    what a name stands for (of the hub: manifests/hf.co/<org>/<repo>/<tag>.json; of a
                               registry: manifests/<host>+<port>/<space>/<name>/<tag>.json, "+" where none is said)
views/<hex>/<file name>        a manifest's files under the names that they were published with: links to blobs
partial/<key>                  downloads that are not finished; the next pull goes on with them
locks/<key>.lock               held by the process that writes
lowered/<file>-<key>.lowered   what devices made of weights: written by engines, removed here with its blob
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quire.types.lowered import FOLDER

from .errors import writing

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
        with writing(self.home):
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
    """Make a finished file visible: its bytes are on the disk before its name is."""
    with writing(path.parent):
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old one or the new one, and nothing in between."""
    with writing(path.parent):
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
    """A rename survives a power cut only when the folder is written too; not every system lets us ask for that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
