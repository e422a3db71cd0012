"""Lowered weights on disk: what a device made of a checkpoint, found again at the next start and mapped, not read.

One file for each model, device and layout; several processes share its pages. A file is whole or not there: it is
written beside its name, flushed and renamed. What is damaged is not used, and made again. Whatever goes wrong with the
disk, the model runs: it is lowered anew, and one line of the log says why.

    magic, length of the header, SHA-256 of the header
    header    JSON: bytes of all arrays, the place and size of each, a digest of samples of them
    arrays    each at a whole page

It is written in pieces of 2 MB and mapped with a wish for large pages: Linux then holds it in large pages (ext4, XFS),
shared by all. A step of one token over such a map takes as long as over memory of our own; over pages of 4 KB it took
2 % more. A copy into memory of our own would cost 20 ms a start for 100 MB, and the sharing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from quire.types.lowered import SUFFIX, file_prefix

Array = NDArray[Any]

logger = logging.getLogger(__name__)

PART = ".part"
START = Struct("<8sQ32s")  # magic, bytes of the header, its SHA-256
MAGIC = b"QUIRELW1"
PAGE, PIECE = 4096, 2 << 20
MAX_HEADER = 64 << 20
NUM_SAMPLES, SAMPLE_BYTES = 64, 4096
KEEP_FREE = 256 << 20  # bytes of the disk that a cache leaves to others
ABANDONED_SECONDS = 3600.0  # a part that nobody has written to for so long has lost its writer


class Damaged(Exception):
    """The file is not what was written. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class LoweredStore:
    """The folder of all lowered models, held below a size by dropping what was used longest ago."""

    folder: Path
    max_bytes: int
    min_bytes: int = 16 << 20  # a smaller model is lowered again in less time than anyone notices

    def of(self, *identity: str, file: Path | None = None) -> LoweredModel:
        """The place of one model's weights: its checkpoint, its graph, and the version of those who lower it.

        `file`: the checkpoint's first file; what is kept is removed with it.
        """
        return LoweredModel(self, identity, "" if file is None else file_prefix(file))

    def trim(self, spared: Path) -> None:
        """Remove abandoned parts, then files, the least recently used first, until the rest fits. A map outlives it."""
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            try:
                status = path.stat()
                if path.suffix == PART and time.time() - status.st_mtime > ABANDONED_SECONDS:
                    path.unlink()
                elif path.suffix == SUFFIX and path != spared:
                    found.append((status.st_mtime, status.st_size, path))
            except FileNotFoundError:  # another process was here first
                continue
        room = self.max_bytes - spared.stat().st_size
        for _, size, path in sorted(found, reverse=True):
            room -= size
            if room < 0:
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LoweredModel:
    """One model's lowered weights, for any device. A recipe says how a device makes them, in words of its own."""

    store: LoweredStore
    identity: tuple[str, ...]
    start: str = ""  # of the names of its files
    _writers: list[threading.Thread] = field(default_factory=list)

    def path(self, recipe: str) -> Path:
        """The file for this recipe, whether it is there or not. One that was made of a copy of the checkpoint, or
        before the store was moved, is as good."""
        key = hashlib.sha256(json.dumps([*self.identity, recipe]).encode()).hexdigest()
        own = self.store.folder / f"{self.start}{key}{SUFFIX}"
        return own if own.exists() else next(self.store.folder.glob(f"*{key}{SUFFIX}"), own)

    def find(self, recipe: str) -> Mapping[str, Array] | None:
        """Arrays that were kept: uint8, read only, mapped as long as one of them is held. None if there are none."""
        path = self.path(recipe)
        try:
            arrays = read_arrays(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, Damaged) as error:
            logger.warning("the lowered weights in %s are not used: %s", path, error)
            return None
        with suppress(OSError):  # a folder that may only be read is as good
            os.utime(path)  # the time of use; trim goes by it
        return arrays

    def keep(self, recipe: str, arrays: Mapping[str, Array]) -> None:
        """Write them for the next start, beside whatever the caller goes on to do. They must not change any more."""
        num_bytes = sum(array.nbytes for array in arrays.values())
        if num_bytes < self.store.min_bytes:
            return
        if num_bytes > self.store.max_bytes:
            logger.info("the lowered weights (%.0f MB) are more than their cache may hold", num_bytes / 1e6)
            return
        # No daemon: a process that ends sooner waits for it, so that the next start finds them.
        writer = threading.Thread(target=self._write, args=(self.path(recipe), arrays), name="quire-lowered")
        writer.start()
        self._writers.append(writer)

    def wait(self) -> None:
        """Until all that was kept is on disk, or could not be."""
        while self._writers:
            self._writers.pop().join()

    def _write(self, path: Path, arrays: Mapping[str, Array]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            needed, free = sum(array.nbytes for array in arrays.values()), shutil.disk_usage(path.parent).free
            if free < needed + KEEP_FREE:
                message = "the lowered weights are not kept: they take %.0f MB, and %.0f MB are free in %s"
                logger.warning(message, needed / 1e6, free / 1e6, path.parent)
                return
            write_arrays(path, arrays)
            self.store.trim(path)
        except OSError as error:
            logger.warning("the lowered weights are not kept in %s: %s", path.parent, error.strerror or error)


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write a file of arrays: whole, or not at all. OSError if the disk does not take it."""
    spans, end = {}, 0
    for name, array in arrays.items():
        spans[name] = (end, array.nbytes)
        end += _padded(array.nbytes)
    flat = [array.reshape(-1).view(np.uint8) for array in arrays.values()]
    header = json.dumps({"bytes": end, "arrays": spans, "samples": _samples(flat)}).encode()
    handle, part = tempfile.mkstemp(PART, dir=path.parent)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            pieces = Pieces(file)
            pieces.add(START.pack(MAGIC, len(header), hashlib.sha256(header).digest()) + header)
            for array in flat:
                pieces.add(array.data)
            pieces.flush()
            os.fsync(handle)
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink()
        raise


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a file, mapped. OSError if it cannot be opened, Damaged if it is not what was written."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < PAGE:
            raise Damaged("it is cut short")
        header, begin = _read_header(file.read(START.size), file)
        if begin + header["bytes"] != size:
            raise Damaged(f"it has {size:,} bytes and should have {begin + header['bytes']:,}")
        mapped = _map(file)
    arrays = {name: mapped[begin + at : begin + at + count] for name, (at, count) in header["arrays"].items()}
    if _samples(list(arrays.values())) != header["samples"]:
        raise Damaged("its content has changed")
    return arrays


def _read_header(start: bytes, file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays begin. Once its digest is right, it is as we wrote it."""
    magic, length, digest = START.unpack(start)
    if magic != MAGIC or length > MAX_HEADER:
        raise Damaged("it does not begin as such a file does")
    text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        raise Damaged("its header has changed")
    header: dict[str, Any] = json.loads(text)
    return header, _padded(START.size + length)


def _map(file: BinaryIO) -> Array:
    found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            found.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(found, np.uint8)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // PAGE) * PAGE


class Pieces:
    """Writes a file in pieces of 2 MB, each at a multiple of that, so that the system has it in large pages."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._piece, self._used = memoryview(bytearray(PIECE)), 0

    def add(self, content: bytes | memoryview) -> None:
        """The next bytes, filled up to whole pages with zeros."""
        self._append(memoryview(content))
        self._append(memoryview(bytes(_padded(len(content)) - len(content))))

    def flush(self) -> None:
        """Write what is not yet written."""
        left = self._piece[: self._used]
        while left:  # a disk that is nearly full takes a part of it, then none
            left = left[self._file.write(left) :]
        self._used = 0

    def _append(self, content: memoryview) -> None:
        while content:
            count = min(len(content), PIECE - self._used)
            self._piece[self._used : self._used + count] = content[:count]
            self._used += count
            content = content[count:]
            if self._used == PIECE:
                self.flush()


def _samples(arrays: list[Array]) -> str:
    """A digest of a few pages, evenly out of all arrays: a disk that lost whole stretches of a file is found out."""
    state = hashlib.sha256()
    stride = max(SAMPLE_BYTES, sum(map(len, arrays)) // NUM_SAMPLES)
    passed = 0  # bytes since the last sample
    for array in arrays:
        for at in range(-passed % stride, len(array), stride):
            state.update(array[at : at + SAMPLE_BYTES].data)
        passed = (passed + len(array)) % stride
    return state.hexdigest()
