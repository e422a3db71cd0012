"""Memory and CPU time of processes, from Linux's /proc. Elsewhere they are unknown."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path

KILOBYTE = 1024  # the unit of /proc


def process_tree(root: int) -> list[int]:
    """Return a process and all its descendants, the process itself first."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            children[int(_stat_fields(stat)[1])].append(int(stat.parent.name))
    tree = [root]
    for process in tree:
        tree += children[process]
    return tree


def processor_seconds(process: int) -> float | None:
    """Return the CPU time of all threads of a process. None: unknown, or it has ended."""
    try:
        fields = _stat_fields(Path(f"/proc/{process}/stat"))
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(process: int) -> int | None:
    """Return the resident memory of a process; a page of n processes counts 1/n. None: unknown, or it has ended."""
    shared = _kilobytes(Path(f"/proc/{process}/smaps_rollup"), "Pss:")
    return shared if shared is not None else _kilobytes(Path(f"/proc/{process}/status"), "VmRSS:")


def peak_bytes(process: int | None = None) -> int | None:
    """Return the peak resident memory of a process, of this one by default. None: unknown.

    Not from `getrusage`, whose count starts with the parent's at the fork.
    """
    return _kilobytes(Path(f"/proc/{process or 'self'}/status"), "VmHWM:")


def _kilobytes(file: Path, field: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * KILOBYTE
    return None


def _stat_fields(stat: Path) -> list[str]:
    """Return the fields after the command's name, which may contain spaces: the state is 0, the parent 1."""
    return stat.read_text().rpartition(") ")[2].split()
