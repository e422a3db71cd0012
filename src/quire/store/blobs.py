"""Files by content. A blob appears complete and verified, or not at all; no two processes write the same one."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from quire.types.lowered import SUFFIX, file_prefix

from .disk_space import bytes_on_disk, check_disk_space
from .errors import WrongChecksum, explain_write_errors
from .layout import CHUNK, DIGEST_PREFIX, Layout, digest_of, publish
from .locks import locked
from .manifest import StoredFile
from .model_files import NewFile
from .source import Progress, Source, SourceFile, no_progress

FindExternal = Callable[[str, int | None], Path | None]  # a file with this digest and size that another program keeps
PARTIAL_DAYS = 14  # an unfinished download that is older is removed


class Blobs:
    """The files of all models of one store."""

    def __init__(self, layout: Layout, find_external: FindExternal = lambda digest, size: None) -> None:
        self.layout = layout
        self._find_external = find_external

    def ensure(self, source: Source, file: SourceFile, progress: Progress) -> StoredFile:
        """Have this file in the store: keep the blob if its checksum is right, else fetch it from the source."""
        key = _key(file)
        lock = self.layout.locks / f"{key}.lock"
        with locked(lock, waiting=lambda: progress(f"waiting for another process to fetch {file.file_name}", 0, None)):
            if file.digest is not None and (stored := self._verified(file, file.digest, progress)):
                return stored
            if file.digest is not None and (external := self._find_external(file.digest, file.size)):
                return self._link_external(external, file, file.digest)
            partial = self.layout.partial / key
            digest = self._fetch(source, file, partial, progress)
            size = partial.stat().st_size
            with explain_write_errors(self.layout.blobs):
                partial.chmod(0o444)
            publish(partial, self.layout.blob(digest))
        return StoredFile(file.role, digest, size, file.file_name)

    def bytes_missing(self, file: SourceFile) -> int:
        """Bytes that a pull still has to fetch, judged by sizes alone."""
        if file.size is None or (file.digest is not None and _size(self.layout.blob(file.digest)) == file.size):
            return 0
        if file.digest is not None and self._find_external(file.digest, file.size):
            return 0
        return max(0, file.size - bytes_on_disk(self.layout.partial / _key(file)))

    def space_needed(self, file: SourceFile) -> int:
        """Bytes that must be free on the disk before a pull begins: for the file and for the archive it comes in."""
        missing = self.bytes_missing(file)
        if missing == 0:
            return 0
        fetched = sum(map(bytes_on_disk, self.layout.partial.glob(f"{_key(file)}.*")))  # of the archive
        return missing + max(0, file.archive_size - fetched)

    def link(self, files: Iterable[StoredFile]) -> None:
        """Link the files that are outside the store, unless it has a blob for them."""
        for file in files:
            if file.origin and not self.layout.blob(file.digest).exists():
                self._link(Path(file.origin), file.digest)

    def path_of(self, file: StoredFile) -> Path:
        """Where to read a file: the blob, or the original if there is no blob."""
        blob = self.layout.blob(file.digest)
        return Path(file.origin) if file.origin and not os.path.lexists(blob) else blob

    def add(self, chunks: Iterable[bytes], digest: str | None = None) -> tuple[str, int]:
        """Store bytes and return their digest and size. If `digest` is given and differs, nothing is stored."""
        state, size = hashlib.sha256(), 0
        with explain_write_errors(self.layout.partial):
            handle, name = tempfile.mkstemp(prefix="add-", dir=self.layout.partial)
            temporary = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                        state.update(chunk)
                        size += len(chunk)
                actual = state.hexdigest()
                if digest not in (None, actual):
                    raise WrongChecksum(
                        f"The checksum of the data is {actual[:12]}…, expected {(digest or '')[:12]}…: send it again."
                    )
                temporary.chmod(0o444)
                publish(temporary, self.layout.blob(actual))
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return actual, size

    def add_file(self, file: NewFile, progress: Progress = no_progress) -> StoredFile:
        """Store a file of a new model. One on the store's own file system is linked, not copied."""
        if isinstance(file.content, bytes):
            digest, size = self.add([file.content])
            return StoredFile(file.role, digest, size, file.file_name)
        path = file.content.resolve(strict=True)
        if path.parent == self.layout.blobs.resolve():  # reached through a view of the store itself
            return StoredFile(file.role, path.name.removeprefix(DIGEST_PREFIX), path.stat().st_size, file.file_name)
        status = path.stat()
        digest = digest_of(path, lambda done: progress(f"reading {file.file_name}", done, status.st_size))
        if _size(self.layout.blob(digest)) == status.st_size and not self.layout.blob(digest).is_symlink():
            return StoredFile(file.role, digest, status.st_size, file.file_name)
        if status.st_dev != self.layout.blobs.stat().st_dev:
            return self._copy(file, path, digest, progress)
        self._link(path, digest)
        return StoredFile(file.role, digest, status.st_size, file.file_name, str(path), status.st_mtime_ns)

    def problem(self, file: StoredFile) -> str:
        """What is wrong with a stored file, judged by size and time without reading it. Empty: nothing."""
        blob = self.path_of(file)
        size = _size(blob)
        if blob.is_symlink():
            origin = blob.readlink()
            if size is None:
                return f"was used in place, at {origin}, and is no longer there"
            is_same = file.modified == blob.stat().st_mtime_ns or origin != Path(file.origin)  # linked again since
            is_same = is_same or origin.name.endswith(file.digest)  # another program's blob, named by its content
            return "" if is_same and size == file.size else f"is used in place, at {origin}, and was changed there"
        if size is None:
            return "is missing"
        return "" if size == file.size else f"has {size:,} bytes, expected {file.size:,}"

    def _copy(self, new: NewFile, path: Path, digest: str, progress: Progress) -> StoredFile:
        def chunks() -> Iterable[bytes]:
            done, total = 0, path.stat().st_size
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    done += len(chunk)
                    yield chunk
                    progress(f"copying {new.file_name}", done, total)

        check_disk_space(self.layout.blobs, path.stat().st_size)
        _, size = self.add(chunks(), digest)
        return StoredFile(new.role, digest, size, new.file_name)

    def _link_external(self, path: Path, file: SourceFile, digest: str) -> StoredFile:
        status, real = path.stat(), path.resolve()
        self._link(real, digest)
        return StoredFile(file.role, digest, status.st_size, file.file_name, str(real), status.st_mtime_ns)

    def _link(self, path: Path, digest: str) -> None:
        """Put a link where the blob would be. It replaces a link to another file with the same content."""
        with explain_write_errors(self.layout.blobs), tempfile.TemporaryDirectory(dir=self.layout.partial) as folder:
            link = Path(folder, "link")
            link.symlink_to(path)
            link.replace(self.layout.blob(digest))

    def _verified(self, file: SourceFile, digest: str, progress: Progress) -> StoredFile | None:
        """The blob with this digest if its whole content still has it. A damaged one stays until it is replaced."""
        blob = self.layout.blob(digest)
        size = _size(blob)
        if size is None or file.size not in (None, size):
            return None
        modified = blob.stat().st_mtime_ns
        what = f"checking {file.file_name}"
        if digest_of(blob, lambda done: progress(what, done, size)) != digest:
            return None
        origin = (str(blob.readlink()), modified) if blob.is_symlink() else ("", 0)
        return StoredFile(file.role, digest, size, file.file_name, *origin)

    def _fetch(self, source: Source, file: SourceFile, partial: Path, progress: Progress) -> str:
        """Fetch to `partial` and return the digest. A resumed download with a wrong checksum is fetched once more."""
        is_resumed = partial.exists()
        source.fetch(file, partial, progress)
        digest = digest_of(partial)
        if file.digest in (None, digest):
            return digest
        partial.unlink()
        if is_resumed:
            return self._fetch(source, file, partial, progress)
        raise WrongChecksum(
            f"The checksum of {file.file_name} is {digest[:12]}…, expected {(file.digest or '')[:12]}…: it was "
            "changed or damaged on the way and has been deleted. Try again."
        )

    def remove_unused(self, keep: set[str], views: set[str]) -> int:
        """Remove blobs and views that no manifest needs, lowered weights of those blobs, and old partial downloads.

        The caller holds the store's lock exclusively, so no manifest that needs one of them is being written.
        """
        freed = 0
        for blob in self.layout.blobs.glob(f"{DIGEST_PREFIX}*"):
            digest = blob.name.removeprefix(DIGEST_PREFIX)
            if digest not in keep:
                is_external = blob.is_symlink() and self._find_external(digest, None) is not None  # can still be run
                freed += 0 if is_external else self._remove_lowered(blob)
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

    def _remove_lowered(self, blob: Path) -> int:
        """Remove the lowered weights made from a blob. An engine that has them mapped keeps them until it ends."""
        freed = 0
        for path in self.layout.lowered.glob(f"{file_prefix(blob)}*{SUFFIX}"):
            with suppress(FileNotFoundError):
                freed += _remove(path)
        return freed


def _key(file: SourceFile) -> str:
    return hashlib.sha256(file.key.encode()).hexdigest()


def _size(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return None


def _remove(path: Path) -> int:
    size = path.lstat().st_size if not path.is_symlink() else 0  # only the link is removed: its target is not ours
    path.unlink()
    return size
