"""Is there room on the disk?"""

from __future__ import annotations

import shutil
from pathlib import Path

from .errors import DiskFull

KEEP_FREE = 16 << 20  # of the disk: a full one breaks more than us


def check_room(folder: Path, num_bytes: int) -> None:
    """Refuse before the first byte what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if num_bytes > 0 and free < num_bytes + KEEP_FREE:
        raise DiskFull(
            f"{num_bytes / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free in {folder}: free some space, "
            "or move the store to another disk with QUIRE_HOME."
        )


def bytes_on_disk(path: Path) -> int:
    """What a file takes, holes in it aside; 0 if there is none."""
    return path.stat().st_blocks * 512 if path.exists() else 0
