"""A large file over several connections, piece by piece; how far each piece is stands on disk beside the file.

A byte is written to the file before the note says so: whoever is killed in between has fetched it in vain, and no note
ever promises a byte that is not there. (After a power cut one may: then the digest is wrong, and all begins anew.)
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

from .crew import Crew, Stopped
from .download import HTTP_PARTIAL, Address, Interrupted, asking, download, gave_up, insist, size_of
from .errors import writing
from .room import bytes_on_disk, check_room
from .source import Progress

PIECE = 16 << 20
PARALLEL_FROM = 2 * PIECE  # a file below this size comes over one connection
CONNECTIONS = 4
NUMBER = struct.Struct("<Q")


class _NoRanges(Exception):
    """The server sends the whole file whatever part is asked for."""


class Pieces:
    """The file and the note beside it: its size, the size of a piece, and how many bytes there are of each."""

    def __init__(self, into: Path, size: int) -> None:
        self.size = size
        self.count = -(-size // PIECE)
        self._writing = threading.Lock()
        note = note_of(into)
        if not into.exists():
            note.unlink(missing_ok=True)
        first = 0 if note.exists() else size_of(into)
        self._note = os.open(note, os.O_RDWR | os.O_CREAT, 0o644)
        self._file = os.open(into, os.O_RDWR | os.O_CREAT, 0o644)
        self.have = self._read() or [max(0, min(self.length(n), first - n * PIECE)) for n in range(self.count)]
        self.done = sum(self.have)
        os.pwrite(self._note, b"".join(map(NUMBER.pack, (size, PIECE, *self.have))), 0)
        os.ftruncate(self._note, NUMBER.size * (2 + self.count))
        os.ftruncate(self._file, size)  # what is not there yet is a hole, which takes no room

    def length(self, number: int) -> int:
        """Of one piece; the last is shorter."""
        return min(PIECE, self.size - number * PIECE)

    def write(self, number: int, chunk: bytes) -> None:
        """The next bytes of a piece: first themselves, then the note of them."""
        with self._writing:
            if self._file < 0:
                raise Stopped
            start, view = number * PIECE + self.have[number], memoryview(chunk)
            while view:
                written = os.pwrite(self._file, view, start)
                start, view = start + written, view[written:]
            have = self.have[number] + len(chunk)
            os.pwrite(self._note, NUMBER.pack(have), NUMBER.size * (2 + number))
            self.have[number] = have
            self.done += len(chunk)

    def close(self) -> None:
        """A thread that comes later writes nothing: its handle may be another file's by then."""
        with self._writing:
            os.close(self._file)
            os.close(self._note)
            self._file = self._note = -1

    def _read(self) -> list[int] | None:
        """What the note says. None: it is new, or not of this file."""
        raw = os.pread(self._note, NUMBER.size * (2 + self.count), 0)
        if len(raw) < NUMBER.size * (2 + self.count):
            return None
        size, piece, *have = (number for (number,) in NUMBER.iter_unpack(raw))
        is_ours = (size, piece) == (self.size, PIECE) and all(each <= self.length(n) for n, each in enumerate(have))
        return have if is_ours else None


def download_in_ranges(address: Address, into: Path, size: int | None, progress: Progress) -> None:
    """As `download`, over several connections if the file is large enough to make that worth it."""
    note = note_of(into)
    if size is None or size < PARALLEL_FROM:
        download(address, into, size, progress)
        return
    if not note.exists() and size_of(into) == size:
        progress(address.what, size, size)
        return
    try:
        with writing(into.parent), closing(Pieces(into, size)) as pieces:
            check_room(into.parent, size - bytes_on_disk(into))
            _fetch_all(address, pieces, progress)
    except _NoRanges:
        into.unlink()
        note.unlink()
        download(address, into, size, progress)
    else:
        note.unlink()


def note_of(into: Path) -> Path:
    """Where it stands what is there of an unfinished file."""
    return into.with_name(f"{into.name}.ranges")


def _fetch_all(address: Address, pieces: Pieces, progress: Progress) -> None:
    progress(address.what, pieces.done, pieces.size)
    crew = Crew(progress)
    missing = [number for number in range(pieces.count) if pieces.have[number] < pieces.length(number)]
    crew.run([partial(_fetch, address, pieces, number, crew.progress) for number in missing], CONNECTIONS)


def _fetch(address: Address, pieces: Pieces, number: int, progress: Progress) -> None:
    def attempt() -> None:
        start, end = number * PIECE + pieces.have[number], number * PIECE + pieces.length(number)
        with asking(address, start, end) as (answer, _):
            if answer.status_code != HTTP_PARTIAL:
                raise _NoRanges
            for chunk in answer.iter_raw():
                start += len(chunk)
                if start > end:
                    raise Interrupted("the server sent more than was asked for")
                pieces.write(number, chunk)
                progress(address.what, pieces.done, pieces.size)
        if start != end:
            raise Interrupted(f"{end - start:,} bytes of a range are missing")

    insist(attempt, lambda: pieces.have[number], lambda error: gave_up(address, pieces.done, error))
