"""What this machine has, found out without what would use it: test processes are many, and torch takes seconds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def has_gpu() -> bool:
    """Is there a GPU that torch and Triton could use?"""
    return Path("/dev/nvidiactl").exists() and find_spec("torch") is not None and find_spec("triton") is not None
