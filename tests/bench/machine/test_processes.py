"""Memory and CPU time of processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.bench.machine.memory import tree_bytes, watch_memory
from quire.bench.machine.processes import peak_bytes, process_tree, processor_seconds, resident_bytes

pytestmark = [pytest.mark.pure, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")]

SIZE = 50 << 20
CHILD = f"data = bytearray(b'1') * {SIZE}; print(flush=True); input()"  # holds the memory until its input is closed


@pytest.fixture
def child():
    command = [sys.executable, "-S", "-E", "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.stdin.close()


def test_a_tree_has_the_process_first_and_its_children(child):
    tree = process_tree(os.getpid())
    assert tree[0] == os.getpid() and child.pid in tree
    assert process_tree(child.pid) == [child.pid]


def test_memory_of_a_process(child):
    assert SIZE < resident_bytes(child.pid) <= peak_bytes(child.pid)
    assert tree_bytes([child.pid]) > SIZE


def test_an_ended_process_has_no_figures(child):
    child.stdin.close()
    child.wait()
    assert resident_bytes(child.pid) is processor_seconds(child.pid) is tree_bytes([child.pid]) is None


def test_cpu_time_grows_with_work():
    before = processor_seconds(os.getpid())
    while processor_seconds(os.getpid()) == before:
        sum(range(100_000))
    assert processor_seconds(os.getpid()) > before


def test_the_peak_of_a_tree_is_kept_while_it_is_watched(child):
    async def watch() -> int | None:
        async with watch_memory(child.pid) as peak:
            peak.sample(child.pid)
            child.stdin.close()
            child.wait()
        return peak.memory_bytes

    assert asyncio.run(watch()) > SIZE
