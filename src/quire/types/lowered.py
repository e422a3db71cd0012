"""How files of lowered weights are named, so that removing a checkpoint also finds what devices made of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = "lowered"  # below QUIRE_HOME
SUFFIX = ".lowered"
NUM_DIGITS = 16


def start_of(file: Path) -> str:
    """The first part of the names of all that was made of this file, wherever links to it lie."""
    return f"{hashlib.sha256(str(file.resolve()).encode('utf-8', 'surrogateescape')).hexdigest()[:NUM_DIGITS]}-"
