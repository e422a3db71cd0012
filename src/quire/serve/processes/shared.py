"""What the processes of one server know together, in files of a folder that the hub makes: quotas and metrics.

Rows of quotas are a file that all of them map, changed by whoever holds its lock; the system lifts the lock of a
process that dies. Metrics each process writes down every second for the others to add up.
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
from quire.serve.access.keys import Key
from quire.serve.access.quota import RUNNING, Row, new_row

METRICS = {metric.name: metric for metric in ALL}


class Written(NamedTuple):
    """A sample, with its metric by name."""

    metric: str
    value: float | HistogramValue
    model: str
    label: str | None


class SharedTable:
    """The rows of all keys, for all processes."""

    def __init__(self, path: Path, keys: Sequence[Key], num_processes: int) -> None:
        self._places = {key.name: place for place, key in enumerate(keys)}
        self._width = RUNNING + num_processes
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._rows = memoryview(self._map).cast("d")

    @classmethod
    def make(cls, path: Path, keys: Sequence[Key], num_processes: int) -> SharedTable:
        """A new one: nobody has used anything."""
        rows = array("d", new_row(num_processes) * max(1, len(keys)))  # no file of no bytes can be mapped
        path.write_bytes(rows.tobytes())
        return cls(path, keys, num_processes)

    @contextmanager
    def row(self, key: Key) -> Iterator[Row]:
        """One key's, for nobody else meanwhile: the others wait the few microseconds that this takes."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            start = self._places[key.name] * self._width
            with self._rows[start : start + self._width] as row:
                yield row
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def forget(self, place: int) -> None:
        """A process is gone: nothing runs there."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        for start in range(0, len(self._rows), self._width):
            self._rows[start + RUNNING + place] = 0.0
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Look at it no more."""
        self._rows.release()
        self._map.close()
        self._file.close()


class SharedMeters:
    """One process' numbers for the others, and theirs for it. Whoever takes the place of one that died adds to its."""

    def __init__(self, folder: Path, place: int) -> None:
        self._folder = folder
        self._path = folder / f"meters-{place}"
        self._before = _read(self._path)

    def write(self, samples: Iterable[MetricSample]) -> None:
        """Tell the others."""
        rows = [Written(each.metric.name, *each[1:]) for each in sum_samples([*self._before, *samples])]
        part = self._path.with_name(f".{self._path.name}")
        part.write_bytes(msgspec.msgpack.encode(rows))
        part.replace(self._path)

    def others(self) -> list[MetricSample]:
        """What the others have told last, and whoever was here before."""
        files = (path for path in self._folder.glob("meters-*") if path != self._path)
        return [*self._before, *(sample for path in files for sample in _read(path))]


def _read(path: Path) -> list[MetricSample]:
    if not path.exists():
        return []
    rows = msgspec.msgpack.decode(path.read_bytes(), type=list[Written])
    return [MetricSample(METRICS[row.metric], row.value, row.model, row.label) for row in rows]
