"""The host's memory: what the machine has, and what a control group leaves of it."""

from __future__ import annotations

from pathlib import Path

from quire.devices.facts import DeviceMemory, MemoryKind

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
ASSUMED_BYTES = 8 << 30  # where there is no /proc/meminfo: what a small laptop has


def host_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> DeviceMemory:
    """Memory that this process may use: the machine's, or less if a container's limit says so."""
    sizes = _meminfo(proc / "meminfo")
    total = min([sizes.get("MemTotal", ASSUMED_BYTES), *_cgroup_limits(proc / "self" / "cgroup", cgroups)])
    return DeviceMemory(MemoryKind.HOST, total, sizes.get("MemAvailable"))


def _meminfo(file: Path) -> dict[str, int]:
    """Sizes in bytes by their names; of a line that cannot be read, none."""
    sizes: dict[str, int] = {}
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return sizes
    for line in lines:
        name, _, rest = line.partition(":")
        number = (rest.split() or [""])[0]
        if number.isdecimal():
            sizes[name] = int(number) * 1024
    return sizes


def _cgroup_limits(membership: Path, cgroups: Path) -> list[int]:
    """The limits of our group and of all groups above it, in version 2 and version 1 of the files."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, kinds, group = line.split(":", 2)
        root, name = (cgroups, "memory.max") if not kinds else (cgroups / "memory", "memory.limit_in_bytes")
        if kinds and "memory" not in kinds.split(","):
            continue
        below = root / group.lstrip("/")
        for folder in [each for each in (below, *below.parents) if each.is_relative_to(root)]:
            try:
                limits.append(int((folder / name).read_text()))
            except (OSError, ValueError):  # not there, or "max"
                continue
    return limits
