"""Describe the machine that figures are measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")


def describe_machine() -> str:
    """Return one line with the processor, the number of processors and the system."""
    count = os.cpu_count() or 1
    return f"{_processor()}, {count} processors, {platform.system()} {platform.machine()}"


def _processor() -> str:
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "Hardware")))
    return next(names, platform.processor() or platform.machine())
