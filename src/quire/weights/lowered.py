"""Cache of lowered weights on disk: packed by a device once, and mapped at the next start.

One file per model, device and layout; several processes share its pages. A file is complete or absent: it is written
to a temporary name, flushed and renamed. A damaged file is ignored and written again. If the disk fails, the model
still runs: it is lowered again, and one log line gives the reason.

    magic, length of the header, SHA-256 of the header
    header    JSON: bytes of all arrays, the offset and size of each, a digest of samples of them
    arrays    each page-aligned

The file is written in chunks of 2 MB and mapped with MADV_HUGEPAGE: Linux then keeps it in huge pages (ext4, XFS),
shared by all processes. A decode step over such a map takes as long as over private memory; over pages of 4 KB it took
2 % longer. A private copy would cost 20 ms per start for 100 MB, and would not be shared.
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
PAGE, CHUNK = 4096, 2 << 20
MAX_HEADER = 64 << 20
NUM_SAMPLES, SAMPLE_BYTES = 64, 4096
KEEP_FREE = 256 << 20  # bytes of free disk space that the cache does not use
ABANDONED_SECONDS = 3600.0  # the writer of a partial file that has not changed for so long is gone


class DamagedFile(Exception):
    """The file differs from what was written. The message says how."""


@dataclass(frozen=True, slots=True)
class LoweredStore:
    """The folder of all lowered models, kept below a size by removing the least recently used files."""

    folder: Path
    max_bytes: int
    min_bytes: int = 16 << 20  # smaller models are not cached: lowering them takes no noticeable time

    def for_model(self, *identity: str, file: Path | None = None) -> LoweredModel:
        """Return the cache entry of one model, identified by its checkpoint, its graph and Quire's version.

        `file`: the checkpoint's first file; the cached files are removed with it.
        """
        return LoweredModel(self, identity, "" if file is None else file_prefix(file))

    def trim(self, spared: Path) -> None:
        """Remove abandoned partial files, then the least recently used files until the rest fits. Maps stay valid."""
        candidates: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            try:
                status = path.stat()
                if path.suffix == PART and time.time() - status.st_mtime > ABANDONED_SECONDS:
                    path.unlink()
                elif path.suffix == SUFFIX and path != spared:
                    candidates.append((status.st_mtime, status.st_size, path))
            except FileNotFoundError:  # another process removed it
                continue
        bytes_left = self.max_bytes - spared.stat().st_size
        for _, size, path in sorted(candidates, reverse=True):
            bytes_left -= size
            if bytes_left < 0:
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LoweredModel:
    """One model's lowered weights, for any device. A recipe is a device's description of how it packs them."""

    store: LoweredStore
    identity: tuple[str, ...]
    start: str = ""  # prefix of its file names
    _writers: list[threading.Thread] = field(default_factory=list)

    def path(self, recipe: str) -> Path:
        """Return the file for this recipe, whether or not it exists. A file made from a copy of the checkpoint, or
        before the store was moved, is used too."""
        key = hashlib.sha256(json.dumps([*self.identity, recipe]).encode()).hexdigest()
        own = self.store.folder / f"{self.start}{key}{SUFFIX}"
        return own if own.exists() else next(self.store.folder.glob(f"*{key}{SUFFIX}"), own)

    def find(self, recipe: str) -> Mapping[str, Array] | None:
        """Return the cached arrays: uint8, read only, mapped while one is referenced. None if there are none."""
        path = self.path(recipe)
        try:
            arrays = read_arrays(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, DamagedFile) as error:
            logger.warning("the lowered weights in %s are not used: %s", path, error)
            return None
        with suppress(OSError):  # a read-only folder works too
            os.utime(path)  # the time of last use, for `trim`
        return arrays

    def keep(self, recipe: str, arrays: Mapping[str, Array]) -> None:
        """Write the arrays for the next start, in a thread of their own. They must not change any more."""
        num_bytes = sum(array.nbytes for array in arrays.values())
        if num_bytes < self.store.min_bytes:
            return
        if num_bytes > self.store.max_bytes:
            logger.info(
                "the lowered weights are not cached: they take %.0f MB, and the cache may hold %.0f MB",
                num_bytes / 1e6,
                self.store.max_bytes / 1e6,
            )
            return
        # Not a daemon thread: a process that ends sooner waits for it, so that the next start finds the file.
        writer = threading.Thread(target=self._write, args=(self.path(recipe), arrays), name="quire-lowered")
        writer.start()
        self._writers.append(writer)

    def wait(self) -> None:
        """Wait until all pending writes have finished or failed."""
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
    """Write a file of arrays, completely or not at all. Raises OSError if the disk fails."""
    spans, end = {}, 0
    for name, array in arrays.items():
        spans[name] = (end, array.nbytes)
        end += _padded(array.nbytes)
    flat = [array.reshape(-1).view(np.uint8) for array in arrays.values()]
    header = json.dumps({"bytes": end, "arrays": spans, "samples": _samples(flat)}).encode()
    handle, part = tempfile.mkstemp(PART, dir=path.parent)
    try:
        with os.fdopen(handle, "wb", buffering=0) as file:
            pieces = ChunkWriter(file)
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
    """Map the arrays of a file. Raises OSError if it cannot be opened, DamagedFile if it is damaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < PAGE:
            raise DamagedFile("it is truncated")
        header, begin = _read_header(file.read(START.size), file)
        if begin + header["bytes"] != size:
            raise DamagedFile(f"it has {size:,} bytes and should have {begin + header['bytes']:,}")
        mapped = _map(file)
    arrays = {name: mapped[begin + at : begin + at + count] for name, (at, count) in header["arrays"].items()}
    if _samples(list(arrays.values())) != header["samples"]:
        raise DamagedFile("its content has changed")
    return arrays


def _read_header(start: bytes, file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Return the header, and where the arrays begin. A correct digest means that the header is ours."""
    magic, length, digest = START.unpack(start)
    if magic != MAGIC or length > MAX_HEADER:
        raise DamagedFile("it does not begin with the header of a lowered model")
    text = file.read(length)
    if hashlib.sha256(text).digest() != digest:
        raise DamagedFile("its header has changed")
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


class ChunkWriter:
    """Writes a file in chunks of 2 MB, each at a multiple of that, so that the system keeps it in huge pages."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._chunk, self._used = memoryview(bytearray(CHUNK)), 0

    def add(self, content: bytes | memoryview) -> None:
        """Append bytes, padded to whole pages with zeros."""
        self._append(memoryview(content))
        self._append(memoryview(bytes(_padded(len(content)) - len(content))))

    def flush(self) -> None:
        """Write the buffered bytes."""
        left = self._chunk[: self._used]
        while left:  # a disk that is nearly full takes a part, then none
            left = left[self._file.write(left) :]
        self._used = 0

    def _append(self, content: memoryview) -> None:
        while content:
            count = min(len(content), CHUNK - self._used)
            self._chunk[self._used : self._used + count] = content[:count]
            self._used += count
            content = content[count:]
            if self._used == CHUNK:
                self.flush()


def _samples(arrays: list[Array]) -> str:
    """Return a digest of a few pages, evenly spaced over all arrays: it detects large damaged ranges."""
    state = hashlib.sha256()
    stride = max(SAMPLE_BYTES, sum(map(len, arrays)) // NUM_SAMPLES)
    since_sample = 0  # bytes since the last sample
    for array in arrays:
        for at in range(-since_sample % stride, len(array), stride):
            state.update(array[at : at + SAMPLE_BYTES].data)
        since_sample = (since_sample + len(array)) % stride
    return state.hexdigest()
