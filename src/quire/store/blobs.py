"""Files by content. A blob appears whole and checked, or not at all; two processes never write the same one."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from .errors import WrongChecksum, writing
from .layout import DIGEST_PREFIX, Layout, digest_of, publish
from .locks import locked
from .manifest import StoredFile
from .source import Progress, Source, Wanted

PARTIAL_DAYS = 14  # after which nobody comes back for a download


class Blobs:
    """The files of all models of one store."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def bring(self, source: Source, wanted: Wanted, progress: Progress) -> StoredFile:
        """The file in the store: the one that is there if it is sound, else from the source."""
        key = hashlib.sha256(wanted.key.encode()).hexdigest()
        lock = self.layout.locks / f"{key}.lock"
        with locked(lock, waiting=lambda: progress(f"waiting: another process fetches {wanted.file_name}", 0, None)):
            if wanted.digest is not None and (found := self._sound(wanted, wanted.digest, progress)):
                return found
            partial = self.layout.partial / key
            digest = self._fetch(source, wanted, partial, progress)
            size = partial.stat().st_size
            with writing(self.layout.blobs):
                partial.chmod(0o444)
            publish(partial, self.layout.blob(digest))
        return StoredFile(wanted.role, digest, size, wanted.file_name)

    def _sound(self, wanted: Wanted, digest: str, progress: Progress) -> StoredFile | None:
        """The blob with this digest, read again from end to end. A damaged one stays until its heir replaces it."""
        blob = self.layout.blob(digest)
        if not blob.is_file():
            return None
        size = blob.stat().st_size
        if wanted.size not in (None, size):
            return None
        what = f"checking {wanted.file_name}"
        if digest_of(blob, lambda done: progress(what, done, size)) != digest:
            return None
        return StoredFile(wanted.role, digest, size, wanted.file_name)

    def _fetch(self, source: Source, wanted: Wanted, partial: Path, progress: Progress) -> str:
        """Bring the bytes to `partial` and judge them. A bad end of a resumed download earns one fresh start."""
        resumed = partial.exists()
        source.fetch(wanted, partial, progress)
        digest = digest_of(partial)
        if wanted.digest in (None, digest):
            return digest
        partial.unlink()
        if resumed:
            return self._fetch(source, wanted, partial, progress)
        raise WrongChecksum(
            f"{wanted.file_name} came with the checksum {digest[:12]}… instead of {(wanted.digest or '')[:12]}…: "
            "it was changed or damaged on the way, so it was thrown away. Try again."
        )

    def collect(self, keep: set[str], views: set[str]) -> int:
        """Remove blobs and views that no manifest needs and downloads that nobody came back for; bytes freed.

        The caller holds the store's lock alone, so nobody is about to write a manifest for what goes away here.
        """
        freed = 0
        for blob in self.layout.blobs.glob(f"{DIGEST_PREFIX}*"):
            if blob.name.removeprefix(DIGEST_PREFIX) not in keep:
                freed += _remove(blob)
        for view in self.layout.views.iterdir():
            if view.name not in views:
                for link in view.iterdir():
                    link.unlink()
                view.rmdir()
        oldest = time.time() - PARTIAL_DAYS * 86400
        for partial in self.layout.partial.iterdir():
            if partial.is_file() and partial.stat().st_mtime < oldest:
                freed += _remove(partial)
        return freed


def _remove(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    return size
