"""Names of files with lowered weights, so that removing a checkpoint can remove them too."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = "lowered"  # below QUIRE_HOME
SUFFIX = ".lowered"
NUM_DIGITS = 16


def file_prefix(file: Path) -> str:
    """Prefix of the names of all files made from this checkpoint file, whatever links to it exist."""
    return f"{hashlib.sha256(str(file.resolve()).encode('utf-8', 'surrogateescape')).hexdigest()[:NUM_DIGITS]}-"
