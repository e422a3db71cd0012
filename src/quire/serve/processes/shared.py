"""State that the processes of one server share, as files in the hub's folder: quotas and metrics.

Quotas are a file that every process maps; a process changes it while it holds its lock, and the system releases the
lock of a process that dies. Each process writes its metrics to a file every second, and the others add them up.
"""

from __future__ import annotations

import fcntl
import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from quire.observe.histogram import HistogramValue
from quire.observe.metrics import ALL, MetricSample, sum_samples
from quire.serve.access.keys import ApiKey
from quire.serve.access.quota import RUNNING, QuotaRow, new_row

METRICS = {metric.name: metric for metric in ALL}


class WrittenSample(NamedTuple):
    """A sample with the name of its metric."""

    metric: str
    value: float | HistogramValue
    model: str
    label: str | None


class SharedQuotaTable:
    """The rows of all keys, shared by all processes."""

    def __init__(self, path: Path, keys: Sequence[ApiKey], num_processes: int) -> None:
        self._places = {key.name: place for place, key in enumerate(keys)}
        self._width = RUNNING + num_processes
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._rows = memoryview(self._map).cast("d")

    @classmethod
    def make(cls, path: Path, keys: Sequence[ApiKey], num_processes: int) -> SharedQuotaTable:
        """A new table, in which nothing is used."""
        rows = array("d", new_row(num_processes) * max(1, len(keys)))  # an empty file cannot be mapped
        path.write_bytes(rows.tobytes())
        return cls(path, keys, num_processes)

    @contextmanager
    def row(self, key: ApiKey) -> Iterator[QuotaRow]:
        """The row of a key, locked meanwhile: other processes wait, for a few microseconds."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            start = self._places[key.name] * self._width
            with self._rows[start : start + self._width] as row:
                yield row
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def forget(self, place: int) -> None:
        """A process is gone: it has no requests running."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        for start in range(0, len(self._rows), self._width):
            self._rows[start + RUNNING + place] = 0.0
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unmap the file."""
        self._rows.release()
        self._map.close()
        self._file.close()


class SharedMeters:
    """The metrics of all processes. A process that replaces a dead one continues its metrics."""

    def __init__(self, folder: Path, place: int) -> None:
        self._folder = folder
        self._path = folder / f"meters-{place}"
        self._before = _read(self._path)

    def write(self, samples: Iterable[MetricSample]) -> None:
        """Publish the metrics of this process."""
        rows = [WrittenSample(each.metric.name, *each[1:]) for each in sum_samples([*self._before, *samples])]
        part = self._path.with_name(f".{self._path.name}")
        part.write_bytes(msgspec.msgpack.encode(rows))
        part.replace(self._path)

    def others(self) -> list[MetricSample]:
        """The latest metrics of the other processes, and those of the predecessor of this one."""
        files = (path for path in self._folder.glob("meters-*") if path != self._path)
        return [*self._before, *(sample for path in files for sample in _read(path))]


def _read(path: Path) -> list[MetricSample]:
    if not path.exists():
        return []
    rows = msgspec.msgpack.decode(path.read_bytes(), type=list[WrittenSample])
    return [MetricSample(METRICS[row.metric], row.value, row.model, row.label) for row in rows]
