"""Free space on the disk, checked before a download begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from quire.store.errors import DiskFull

KEEP_FREE = 16 << 20  # bytes left for other programs


def check_disk_space(folder: Path, num_bytes: int) -> None:
    """Raise DiskFull if the disk of `folder` has no space for this many bytes."""
    free = shutil.disk_usage(folder).free
    if num_bytes > 0 and free < num_bytes + KEEP_FREE:
        raise DiskFull(
            f"{num_bytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free in {folder}: free some space "
            "or move the store to another disk with QUIRE_HOME."
        )


def bytes_on_disk(path: Path) -> int:
    """Bytes that a file occupies, without its holes; 0 if it does not exist."""
    return path.stat().st_blocks * 512 if path.exists() else 0
