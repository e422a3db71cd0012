"""Where figures were measured, in one line."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def machine() -> str:
    """The processor, how many of them there are, and the system."""
    count = os.cpu_count() or 1
    return f"{_processor()}, {count} processors, {platform.system()} {platform.machine()}"


def _processor() -> str:
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "Hardware")))
    return next(named, platform.processor() or platform.machine())
