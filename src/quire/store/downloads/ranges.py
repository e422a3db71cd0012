"""Download a large file over several connections, in pieces. A progress file beside it has the bytes of each piece.

Content is written before the progress file, which therefore never counts a byte that is not there. (After a power cut
it may: then the checksum is wrong, and the download starts again.)
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

from quire.store.disk_space import bytes_on_disk, check_disk_space
from quire.store.downloads.http import (
    HTTP_PARTIAL,
    Interrupted,
    RemoteFile,
    download,
    download_failed,
    file_size,
    open_range,
    retry,
)
from quire.store.downloads.thread_group import Stopped, ThreadGroup
from quire.store.errors import explain_write_errors
from quire.store.source import Progress

PIECE = 16 << 20
PARALLEL_FROM = 2 * PIECE  # smaller files are fetched over one connection
CONNECTIONS = 4
NUMBER = struct.Struct("<Q")


class _NoRanges(Exception):
    """The server does not support ranges: it sends the whole file."""


class PartialFile:
    """An unfinished file and its progress file: file size, piece size, and the bytes that each piece has."""

    def __init__(self, into: Path, size: int) -> None:
        self.size = size
        self.count = -(-size // PIECE)
        self._writing = threading.Lock()
        counts = progress_file(into)
        if not into.exists():
            counts.unlink(missing_ok=True)
        prefix = 0 if counts.exists() else file_size(into)  # left by a download over one connection
        self._counts = os.open(counts, os.O_RDWR | os.O_CREAT, 0o644)
        self._file = os.open(into, os.O_RDWR | os.O_CREAT, 0o644)
        self.have = self._read() or [max(0, min(self.length(n), prefix - n * PIECE)) for n in range(self.count)]
        self.done = sum(self.have)
        os.pwrite(self._counts, b"".join(map(NUMBER.pack, (size, PIECE, *self.have))), 0)
        os.ftruncate(self._counts, NUMBER.size * (2 + self.count))
        os.ftruncate(self._file, size)  # missing bytes are a hole, which takes no space

    def length(self, number: int) -> int:
        """Bytes of a piece when it is complete; the last is shorter."""
        return min(PIECE, self.size - number * PIECE)

    def write(self, number: int, chunk: bytes) -> None:
        """Append to a piece: content first, then the count in the progress file."""
        with self._writing:
            if self._file < 0:
                raise Stopped
            start, view = number * PIECE + self.have[number], memoryview(chunk)
            while view:
                written = os.pwrite(self._file, view, start)
                start, view = start + written, view[written:]
            have = self.have[number] + len(chunk)
            os.pwrite(self._counts, NUMBER.pack(have), NUMBER.size * (2 + number))
            self.have[number] = have
            self.done += len(chunk)

    def close(self) -> None:
        """Close both files. A later `write` raises Stopped: the descriptor may be another file's by then."""
        with self._writing:
            os.close(self._file)
            os.close(self._counts)
            self._file = self._counts = -1

    def _read(self) -> list[int] | None:
        """The counts in the progress file. None: it is new, or belongs to another download."""
        raw = os.pread(self._counts, NUMBER.size * (2 + self.count), 0)
        if len(raw) < NUMBER.size * (2 + self.count):
            return None
        size, piece, *have = (number for (number,) in NUMBER.iter_unpack(raw))
        is_ours = (size, piece) == (self.size, PIECE) and all(each <= self.length(n) for n, each in enumerate(have))
        return have if is_ours else None


def download_in_ranges(remote: RemoteFile, into: Path, size: int | None, progress: Progress) -> None:
    """Like `download`, over several connections if the file is large."""
    counts = progress_file(into)
    if size is None or size < PARALLEL_FROM:
        download(remote, into, size, progress)
        return
    if not counts.exists() and file_size(into) == size:
        progress(remote.label, size, size)
        return
    try:
        with explain_write_errors(into.parent), closing(PartialFile(into, size)) as pieces:
            check_disk_space(into.parent, size - bytes_on_disk(into))
            _fetch_all(remote, pieces, progress)
    except _NoRanges:
        into.unlink()
        counts.unlink()
        download(remote, into, size, progress)
    else:
        counts.unlink()


def progress_file(into: Path) -> Path:
    """The path of an unfinished file's progress file."""
    return into.with_name(f"{into.name}.ranges")


def _fetch_all(remote: RemoteFile, pieces: PartialFile, progress: Progress) -> None:
    progress(remote.label, pieces.done, pieces.size)
    threads = ThreadGroup(progress)
    missing = [number for number in range(pieces.count) if pieces.have[number] < pieces.length(number)]
    threads.run([partial(_fetch, remote, pieces, number, threads.progress) for number in missing], CONNECTIONS)


def _fetch(remote: RemoteFile, pieces: PartialFile, number: int, progress: Progress) -> None:
    def attempt() -> None:
        start, end = number * PIECE + pieces.have[number], number * PIECE + pieces.length(number)
        with open_range(remote, start, end) as (response, _):
            if response.status_code != HTTP_PARTIAL:
                raise _NoRanges
            for chunk in response.iter_raw():
                start += len(chunk)
                if start > end:
                    raise Interrupted("the server sent more than requested")
                pieces.write(number, chunk)
                progress(remote.label, pieces.done, pieces.size)
        if start != end:
            raise Interrupted(f"{end - start:,} bytes of a range are missing")

    retry(attempt, lambda: pieces.have[number], lambda error: download_failed(remote, pieces.done, error))
