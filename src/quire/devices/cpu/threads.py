"""Limits the threads of a step to the processors that the system allows this process."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def pool_for(native: ModuleType, num_threads: int | None) -> Any:
    """Return the process's pool of that many threads, or of fewer if fewer are allowed. Programs share it."""
    allowed = allowed_threads()
    return _pool(native, max(1, min(allowed, num_threads or allowed)))


@cache
def _pool(native: ModuleType, num_threads: int) -> Any:
    return native.Pool(num_threads)


def allowed_threads() -> int:
    """Return the processors by affinity (cpusets included) or by the quota of a control group, whichever is less."""
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(processors, int(cgroup_quota())))


def cgroup_quota(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the CPU quota of this process's control groups, in processors; a huge number if there is no limit."""
    quotas = [float(1 << 20)]
    for line in _read(membership).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            quotas += [_quota_v2(folder) for folder in _ancestors(root, path)]
        elif "cpu" in controllers.split(","):
            for base in (root / "cpu", root / controllers):
                quotas += [_quota_v1(folder) for folder in _ancestors(base, path)]
    return min(quotas)


def _ancestors(base: Path, path: str) -> list[Path]:
    """Return the group's folder and its parents: each may set a limit. In a container the path may be the host's."""
    folder = base / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == base or base in parent.parents)]


def _quota_v2(folder: Path) -> float:
    return _share(*[*_read(folder / "cpu.max").split(), "max", "1"][:2])


def _quota_v1(folder: Path) -> float:
    return _share(_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip())


def _share(quota: str, period: str) -> float:
    """Return quota / period. `max`, -1 and unreadable values mean no limit."""
    limited = quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0
    return int(quota) / int(period) if limited else float("inf")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
