"""Files by content. A blob appears whole and checked, or not at all; two processes never write the same one."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from quire.types.lowered import SUFFIX, file_prefix

from .errors import WrongChecksum, writing
from .layout import CHUNK, DIGEST_PREFIX, Layout, digest_of, publish
from .locks import locked
from .manifest import StoredFile
from .parts import Part
from .room import bytes_on_disk, check_room
from .source import Progress, Source, Wanted, silent

Elsewhere = Callable[[str, int | None], Path | None]  # the file with this digest and size that another program keeps
PARTIAL_DAYS = 14  # after which nobody comes back for a download


class Blobs:
    """The files of all models of one store."""

    def __init__(self, layout: Layout, elsewhere: Elsewhere = lambda digest, size: None) -> None:
        self.layout = layout
        self._elsewhere = elsewhere

    def bring(self, source: Source, wanted: Wanted, progress: Progress) -> StoredFile:
        """The file in the store: the one that is there if it is sound, else from the source."""
        key = _key(wanted)
        lock = self.layout.locks / f"{key}.lock"
        with locked(lock, waiting=lambda: progress(f"waiting: another process fetches {wanted.file_name}", 0, None)):
            if wanted.digest is not None and (found := self._sound(wanted, wanted.digest, progress)):
                return found
            if wanted.digest is not None and (other := self._elsewhere(wanted.digest, wanted.size)):
                return self._refer_to(other, wanted, wanted.digest)
            partial = self.layout.partial / key
            digest = self._fetch(source, wanted, partial, progress)
            size = partial.stat().st_size
            with writing(self.layout.blobs):
                partial.chmod(0o444)
            publish(partial, self.layout.blob(digest))
        return StoredFile(wanted.role, digest, size, wanted.file_name)

    def missing(self, wanted: Wanted) -> int:
        """Bytes that a pull has still to bring, as far as a look can tell."""
        if wanted.size is None or (wanted.digest is not None and _size(self.layout.blob(wanted.digest)) == wanted.size):
            return 0
        if wanted.digest is not None and self._elsewhere(wanted.digest, wanted.size):
            return 0
        return max(0, wanted.size - bytes_on_disk(self.layout.partial / _key(wanted)))

    def room_for(self, wanted: Wanted) -> int:
        """Bytes that the disk must have free before a pull begins: the file's, and those of what it comes in."""
        missing = self.missing(wanted)
        if missing == 0:
            return 0
        beside = sum(map(bytes_on_disk, self.layout.partial.glob(f"{_key(wanted)}.*")))
        return missing + max(0, wanted.wrapping - beside)

    def link(self, files: Iterable[StoredFile]) -> None:
        """Refer to files that lie elsewhere on this disk, where the store does not have them yet."""
        for file in files:
            if file.origin and not self.layout.blob(file.digest).exists():
                self._refer(Path(file.origin), file.digest)

    def path_of(self, file: StoredFile) -> Path:
        """Where to read a file: in the store, or where it lies."""
        blob = self.layout.blob(file.digest)
        return Path(file.origin) if file.origin and not os.path.lexists(blob) else blob

    def add(self, chunks: Iterable[bytes], digest: str | None = None) -> tuple[str, int]:
        """Store these bytes: their digest and size. Bytes that are not those promised are thrown away."""
        state, size = hashlib.sha256(), 0
        with writing(self.layout.partial):
            handle, name = tempfile.mkstemp(prefix="add-", dir=self.layout.partial)
            temporary = Path(name)
            try:
                with os.fdopen(handle, "wb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                        state.update(chunk)
                        size += len(chunk)
                found = state.hexdigest()
                if digest not in (None, found):
                    raise WrongChecksum(f"The bytes have the checksum {found[:12]}… and not {(digest or '')[:12]}….")
                temporary.chmod(0o444)
                publish(temporary, self.layout.blob(found))
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return found, size

    def take(self, part: Part, progress: Progress = silent) -> StoredFile:
        """A part of a model that is made here. A file on the store's own file system is referred to, not copied."""
        if isinstance(part.content, bytes):
            digest, size = self.add([part.content])
            return StoredFile(part.role, digest, size, part.file_name)
        path = part.content.resolve(strict=True)
        if path.parent == self.layout.blobs.resolve():  # reached through a view of the store itself
            return StoredFile(part.role, path.name.removeprefix(DIGEST_PREFIX), path.stat().st_size, part.file_name)
        before = path.stat()
        digest = digest_of(path, lambda done: progress(f"reading {part.file_name}", done, before.st_size))
        if _size(self.layout.blob(digest)) == before.st_size and not self.layout.blob(digest).is_symlink():
            return StoredFile(part.role, digest, before.st_size, part.file_name)
        if before.st_dev != self.layout.blobs.stat().st_dev:
            return self._copy(part, path, digest, progress)
        self._refer(path, digest)
        return StoredFile(part.role, digest, before.st_size, part.file_name, str(path), before.st_mtime_ns)

    def problem_of(self, file: StoredFile) -> str:
        """What a look at a stored file shows, without reading it: empty if it seems to be whole."""
        blob = self.path_of(file)
        size = _size(blob)
        if blob.is_symlink():
            origin = blob.readlink()
            if size is None:
                return f"was used where it lay, at {origin}, and is gone from there"
            is_same = file.modified == blob.stat().st_mtime_ns or origin != Path(file.origin)  # else of a later part
            is_same = is_same or origin.name.endswith(file.digest)  # another program's blob: its name is its content
            return "" if is_same and size == file.size else f"is used where it lies, at {origin}, and was changed there"
        if size is None:
            return "is missing"
        return "" if size == file.size else f"has {size:,} bytes instead of {file.size:,}"

    def _copy(self, part: Part, path: Path, digest: str, progress: Progress) -> StoredFile:
        def chunks() -> Iterable[bytes]:
            done, total = 0, path.stat().st_size
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    done += len(chunk)
                    yield chunk
                    progress(f"copying {part.file_name}", done, total)

        check_room(self.layout.blobs, path.stat().st_size)
        _, size = self.add(chunks(), digest)
        return StoredFile(part.role, digest, size, part.file_name)

    def _refer_to(self, path: Path, wanted: Wanted, digest: str) -> StoredFile:
        status, real = path.stat(), path.resolve()
        self._refer(real, digest)
        return StoredFile(wanted.role, digest, status.st_size, wanted.file_name, str(real), status.st_mtime_ns)

    def _refer(self, path: Path, digest: str) -> None:
        """A link in the place of a blob. One to another file with the same bytes gives way to it."""
        with writing(self.layout.blobs), tempfile.TemporaryDirectory(dir=self.layout.partial) as folder:
            link = Path(folder, "link")
            link.symlink_to(path)
            link.replace(self.layout.blob(digest))

    def _sound(self, wanted: Wanted, digest: str, progress: Progress) -> StoredFile | None:
        """The blob with this digest, read again from end to end. A damaged one stays until its heir replaces it."""
        blob = self.layout.blob(digest)
        size = _size(blob)
        if size is None or wanted.size not in (None, size):
            return None
        modified = blob.stat().st_mtime_ns
        what = f"checking {wanted.file_name}"
        if digest_of(blob, lambda done: progress(what, done, size)) != digest:
            return None
        origin = (str(blob.readlink()), modified) if blob.is_symlink() else ("", 0)
        return StoredFile(wanted.role, digest, size, wanted.file_name, *origin)

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
        """Remove blobs, with what devices made of them, and views that no manifest needs; old partial downloads too.

        The caller holds the store's lock alone, so nobody is about to write a manifest for what goes away here.
        """
        freed = 0
        for blob in self.layout.blobs.glob(f"{DIGEST_PREFIX}*"):
            digest = blob.name.removeprefix(DIGEST_PREFIX)
            if digest not in keep:
                is_used = blob.is_symlink() and self._elsewhere(digest, None) is not None  # by a name of its keeper
                freed += 0 if is_used else self._remove_lowered(blob)
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
        """Remove what devices made of it. An engine that has it in memory keeps it until it ends."""
        freed = 0
        for path in self.layout.lowered.glob(f"{file_prefix(blob)}*{SUFFIX}"):
            with suppress(FileNotFoundError):
                freed += _remove(path)
        return freed


def _key(wanted: Wanted) -> str:
    return hashlib.sha256(wanted.key.encode()).hexdigest()


def _size(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return None


def _remove(path: Path) -> int:
    size = path.lstat().st_size if not path.is_symlink() else 0  # the file behind a link is the user's
    path.unlink()
    return size
