"""What a test's child process runs: the engine with a stand-in for its CPU, so that these tests need no compiler."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from quire.devices.cpu import device
from quire.engine import process
from quire.runner.flight import Flight
from quire.runner.runner import Runner
from quire.scheduler.model_drafts import ModelDrafts
from quire.types.step import StepPlan
from tests.engine.model_drafts import always_choosing
from tests.runner.stand_in import InterpreterDevice

STUCK = 125  # one whose prompt never ends: the step waits for ever
POISON = 127  # a token whose prompt ends the process when it is computed
SLOW_POISON = 126  # one whose prompt does so a little later: when it has some output
SLOW_TOKENS = 20
LINGER = (3, 1, 4, 1, 5)  # how prompts begin whose steps are slow
LINGER_SECONDS = 0.25  # of such a step
SLOW_START = 12.0  # seconds that no Python code runs while `deaf` loads its model


def main(inward: str, outward: str) -> None:
    device.DEVICE = InterpreterDevice()  # type: ignore[assignment]
    process.main(inward, outward)


def deaf(inward: str, outward: str) -> None:
    """An engine whose load holds the interpreter's lock for a while, as a long native call may."""
    load = process.load_engine

    def load_without_a_word(*arguments: Any) -> Any:
        loaded = load(*arguments)
        ctypes.PyDLL(None).usleep(int(SLOW_START * 1e6))  # PyDLL keeps the lock
        return loaded

    process.load_engine = load_without_a_word
    main(inward, outward)


def lingering(inward: str, outward: str) -> None:
    """An engine with which requests that begin with LINGER take minutes to end by themselves."""
    launch = Runner.launch

    def launch_and_linger(runner: Runner, plan: StepPlan, *more: Any) -> Flight:
        flight = launch(runner, plan, *more)
        if any(tuple(row.join.tokens[: len(LINGER)]) == LINGER for row in flight.rows):
            time.sleep(LINGER_SECONDS)
        return flight

    Runner.launch = launch_and_linger  # type: ignore[method-assign]
    main(inward, outward)


def dies(inward: str, outward: str) -> None:
    raise SystemExit(7)


def once(inward: str, outward: str) -> None:
    """An engine that starts once, and then as often as the file `lives` beside its folder says."""
    lives = Path(inward.removeprefix("ipc://")).parent.parent / "lives"
    num_left = int(lives.read_text()) if lives.exists() else 1
    lives.write_text(str(num_left - 1))
    if num_left <= 0:
        raise SystemExit(7)
    main(inward, outward)


def mortal(inward: str, outward: str) -> None:
    """An engine that some prompts kill, as a bug in a kernel would."""
    make_mortal()
    main(inward, outward)


def drafting(inward: str, outward: str) -> None:
    """An engine whose model drafts in every step. The first one is killed in the middle of its answers."""
    ModelDrafts.choose = always_choosing(3)  # type: ignore[method-assign]
    was_killed = Path(inward.removeprefix("ipc://")).parent.parent / "was_killed"
    launch = Runner.launch

    def launch_or_die(runner: Runner, plan: StepPlan, *more: Any) -> Flight:
        flight = launch(runner, plan, *more)
        of_target = [(part, row.join) for part, row in zip(plan.parts, flight.rows, strict=True) if row.join.num_prompt]
        if any(part.start - join.num_prompt > SLOW_TOKENS for part, join in of_target):
            was_killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return flight

    if not was_killed.exists():
        Runner.launch = launch_or_die  # type: ignore[method-assign]
    main(inward, outward)


def mortal_cpu(inward: str, outward: str) -> None:
    """The same without a stand-in."""
    make_mortal()
    process.main(inward, outward)


def make_mortal() -> None:
    launch = Runner.launch

    def launch_and_die(runner: Runner, plan: StepPlan, *more: Any) -> Flight:
        flight = launch(runner, plan, *more)
        for part, row in zip(plan.parts, flight.rows, strict=True):
            prompt = row.join.tokens[: row.join.num_prompt]
            num_output = part.start + len(part.tokens or (0,)) - len(prompt)
            if POISON in prompt or (SLOW_POISON in prompt and num_output >= SLOW_TOKENS):
                os.kill(os.getpid(), signal.SIGABRT)
            if STUCK in prompt:
                threading.Event().wait()
        return flight

    Runner.launch = launch_and_die  # type: ignore[method-assign]
