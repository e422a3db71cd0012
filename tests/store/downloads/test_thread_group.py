"""Tasks in threads: results in order, and the first error ends all."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from quire.store.downloads.thread_group import Stopped, ThreadGroup
from quire.store.source import no_progress

pytestmark = pytest.mark.pure


def test_results_are_in_the_order_of_the_tasks():
    turns = [threading.Event() for _ in range(4)]

    def task(number: int) -> int:  # the last one ends first
        if number + 1 < len(turns):
            assert turns[number + 1].wait(60)
        turns[number].set()
        return number

    assert ThreadGroup(no_progress).run([partial(task, number) for number in range(4)], 4) == [0, 1, 2, 3]


def test_no_more_than_max_threads_run_at_once():
    running, most, lock = [], [], threading.Lock()

    def task() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        with lock:
            running.pop()

    ThreadGroup(no_progress).run([task] * 50, 3)
    assert len(most) == 50 and max(most) <= 3


def test_an_error_ends_running_and_waiting_tasks():
    ended, begun = [], threading.Event()

    def long(group: ThreadGroup) -> None:
        begun.set()
        try:
            while True:
                group.progress("work", 0, 1)
        except Stopped:
            ended.append("long")
            raise

    def failing() -> None:
        assert begun.wait(60)
        raise ValueError("no")

    group = ThreadGroup(no_progress)
    with pytest.raises(ValueError, match="no"):
        group.run([partial(long, group), failing, partial(ended.append, "never")], 2)
    assert ended == ["long"]


def test_one_task_runs_in_the_thread_of_its_caller():
    assert ThreadGroup(no_progress).run([threading.current_thread], 4) == [threading.current_thread()]
