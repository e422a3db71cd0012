"""What is taken for a hang, and what is not: looks at a child that is made up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zmq")

import zmq

from quire.config import load
from quire.engine import watch
from quire.engine.launch import ChildEngine
from quire.engine.messages import Configure
from quire.engine.watch import CHECK_SECONDS, Watch, WatchedProcess, cpu_seconds

pytestmark = pytest.mark.device


class Made:
    """A child: whether it echoes, whether its loop answers, and the CPU time that it uses in each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: float = 300.0) -> None:
        self.echoes = True
        self.answers = True
        self.burns = 0.0
        self.cpu: float | None = 5.0
        self.num_probes = 0
        self.was_killed = False
        self._pings = 0
        monkeypatch.setattr(watch, "cpu_seconds", lambda pid: self.cpu)
        echo: Any = self
        self.watch = Watch(WatchedProcess(1, self._probe, self._kill, limit), echo)

    def send(self, frame: bytes, flags: int) -> None:
        self._pings += 1

    def recv(self, flags: int) -> bytes:
        if not self.echoes or not self._pings:
            raise zmq.Again
        self._pings -= 1
        return b""

    def _probe(self) -> None:
        self.num_probes += 1

    def _kill(self) -> None:
        self.was_killed = True

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / CHECK_SECONDS)):
            if self.answers and self.num_probes:
                self.num_probes = 0
                self.watch.record_message()
            if self.cpu is not None:
                self.cpu += self.burns
            if self.watch.kill_reason is None:
                self.watch.check()


def test_an_idle_child_that_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    made.watch.watch_steps()
    made.pass_time(1000)
    assert made.watch.trouble is None and not made.was_killed


def test_a_child_that_stops_echoing_is_reported_and_killed_within_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(monkeypatch)
    made.pass_time(3)
    made.echoes = False
    made.pass_time(5)
    assert "has not responded for" in (made.watch.trouble or "") and not made.was_killed
    made.pass_time(5)
    assert made.was_killed and made.watch.was_stopped and "did not respond for 8 s" in (made.watch.kill_reason or "")


def test_a_child_that_has_never_echoed_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    made.echoes = False
    made.pass_time(1000)
    assert made.watch.trouble is None and not made.was_killed


def test_loading_has_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    made.answers = False
    made.pass_time(1000)
    assert made.watch.trouble is None and made.num_probes == 0


def test_a_long_step_is_reported_and_killed_only_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Made(monkeypatch)
    made.watch.watch_steps()
    made.answers, made.burns = False, 0.05
    made.pass_time(5)
    assert made.watch.trouble is None
    made.pass_time(5)
    assert "has been in one step for" in (made.watch.trouble or "")
    made.pass_time(200)
    assert not made.was_killed
    made.answers = True
    made.pass_time(1)
    assert made.watch.trouble is None
    made.answers = False
    made.pass_time(310)
    assert (
        made.was_killed and not made.watch.was_stopped and "max_step_seconds is 300" in (made.watch.kill_reason or "")
    )


def test_without_max_step_seconds_a_step_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch, limit=0.0)
    made.watch.watch_steps()
    made.answers, made.burns = False, 0.05
    made.pass_time(5000)
    assert not made.was_killed


def test_a_step_that_uses_no_cpu_time_is_killed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    made.watch.watch_steps()
    made.answers = False
    made.pass_time(9)
    assert not made.was_killed and "in one step" in (made.watch.trouble or "")
    made.pass_time(4)
    assert made.was_killed and "used no CPU time" in (made.watch.kill_reason or "")


def test_a_step_with_unknown_cpu_time_is_killed_only_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    made.watch.watch_steps()
    made.answers, made.cpu = False, None
    made.pass_time(100)
    assert not made.was_killed


def test_cpu_time_is_that_of_a_process_and_those_it_started() -> None:
    before = cpu_seconds(os.getpid())
    if before is None:
        pytest.skip("no /proc, or the disk is waited for")
    while (cpu_seconds(os.getpid()) or 0.0) < before + 0.05:
        sum(range(100_000))
    assert cpu_seconds(1 << 30) is None


@pytest.mark.slow
def test_a_load_that_holds_the_interpreters_lock_is_not_taken_for_a_hang(toy_folder: Path, short_tmp: Path) -> None:
    configure = Configure(str(toy_folder), "cpu", load({"num_blocks": 100}, {}))
    link = ChildEngine(configure, lambda messages: None, entry="tests.engine.child:deaf")
    link.close()
