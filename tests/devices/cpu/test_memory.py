"""The host's memory: the machine's, or what a container's limit leaves of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.devices.cpu.memory import host_memory

pytestmark = pytest.mark.pure

GB = 1 << 30


def total_bytes(*folders: Path) -> int | None:
    return host_memory(*folders).total_bytes


def machine(root: Path, total: int, groups: dict[str, str], membership: str) -> tuple[Path, Path]:
    """A /proc and a /sys/fs/cgroup that say this."""
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemFree: 1 kB\nMemTotal:       {total // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(membership)
    for name, text in groups.items():
        (cgroups / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / name).write_text(text)
    return proc, cgroups


def test_memory_is_the_machines_where_no_limit_is(tmp_path: Path) -> None:
    assert total_bytes(*machine(tmp_path, 16 * GB, {}, "0::/\n")) == 16 * GB
    assert total_bytes(tmp_path / "no", tmp_path / "such") == 8 * GB
    assert total_bytes() > 1 << 28  # of the machine that runs this


@pytest.mark.parametrize(
    "groups, membership",
    [
        ({"a/b/memory.max": f"{4 * GB}\n", "a/memory.max": "max\n"}, "0::/a/b\n"),
        ({"a/b/memory.max": "max\n", "a/memory.max": f"{4 * GB}\n"}, "0::/a/b\n"),  # a limit above ours holds too
        ({"memory/box/memory.limit_in_bytes": f"{4 * GB}\n"}, "3:cpu:/x\n7:memory:/box\n"),
    ],
)
def test_a_containers_limit_is_found(tmp_path: Path, groups: dict[str, str], membership: str) -> None:
    assert total_bytes(*machine(tmp_path, 64 * GB, groups, membership)) == 4 * GB


def test_free_memory_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, 16 * GB, {}, "0::/\n")
    assert host_memory(proc, cgroups).free_bytes is None
    (proc / "meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\nHugePages_Total: 0\nodd\n")
    assert host_memory(proc, cgroups).free_bytes == 1 << 20
