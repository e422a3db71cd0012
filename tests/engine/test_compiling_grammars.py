"""What happens while a grammar is compiled, and while masks are computed beside a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llguidance")

from quire.engine.messages import Accepted, Cancel, Cancelled, Failed, Inward, Outward, Shutdown, Submit
from quire.types.errors import DuplicateRequest, InvalidRequest
from quire.types.output import Finished
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from tests.engine.constrained_driver import ENDS, PROMPT, Gate, ask, make_driver, regex
from tests.engine.driver import GREEDY_64, Driver

pytestmark = pytest.mark.device


@pytest.fixture
def make(toy_folder: Path) -> Callable[..., Driver]:
    return partial(make_driver, toy_folder)


def test_others_are_served_while_a_grammar_is_compiled(make: Any) -> None:
    driver = make()
    gate = Gate(driver)
    ask(driver, "held", regex("[ab]{4}"))
    driver.submit("free", PROMPT)
    while driver.step():
        pass
    assert len(driver.tokens("free")) == 64 and not driver.records["held", 0].tokens
    assert driver.core.counters().num_compiling == 1
    gate.opened.set()
    assert len(driver.run().tokens("held")) == 4
    ask(driver, "again", regex("[ab]{4}"))
    driver.step()
    assert Accepted("again") in driver.messages and driver.tokens("again"), "what is compiled already is not waited for"
    driver.run()


def test_a_request_can_be_cancelled_while_its_grammar_is_compiled(make: Any) -> None:
    driver = make()
    gate = Gate(driver)
    ask(driver, "a", regex("[ab]{4}"), SamplingParams(n=2))
    driver.handle(Cancel("a"))
    ended = [Finished("a", sample, FinishReason.CANCELLED) for sample in (0, 1)]
    assert driver.messages == [Accepted("a"), *ended, Cancelled("a", True)]
    driver.handle(Cancel("a"))
    assert driver.messages[-1] == Cancelled("a", False)
    gate.opened.set()
    ask(driver, "b", regex("[ab]{4}"))
    driver.run()
    assert len(driver.tokens("b")) == 4 and len(driver.core._grammars._texts) == 0


def test_one_sample_can_be_cancelled_while_the_grammar_is_compiled(make: Any) -> None:
    driver = make()
    gate = Gate(driver)
    ask(driver, "a", regex("[ab]{4}"), SamplingParams(n=2, seed=1))
    driver.handle(Cancel("a", FinishReason.STOP, 1))
    assert driver.messages == [Cancelled("a", True)]
    gate.opened.set()
    driver.run()
    assert len(driver.tokens("a", 0)) == 4 and driver.records["a", 1].finish is FinishReason.STOP


def test_an_id_is_in_use_while_its_grammar_is_compiled(make: Any) -> None:
    driver = make()
    gate = Gate(driver)
    ask(driver, "a", regex("[ab]{4}"))
    driver.core.handle(Submit(GenerateRequest("a", (1, 2), GREEDY_64)))
    (refused,) = driver.core.take()
    assert isinstance(refused, Failed) and isinstance(refused.error, DuplicateRequest)
    gate.opened.set()
    assert len(driver.run().tokens("a")) == 4


def test_a_grammar_that_takes_too_long_is_a_bad_request(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make(max_grammar_seconds=0.001)
    compiler, is_over = driver.core._grammars._compiler, threading.Event()
    backend = compiler._open_backend()
    monkeypatch.setattr(backend, "compile", lambda constraint: is_over.wait(60))
    monkeypatch.setattr(compiler, "_open_backend", lambda: backend)
    ask(driver, "slow", regex("[ab]{4}"))
    driver.submit("free", PROMPT)
    driver.run()
    is_over.set()
    error = driver.records["slow", 0].error
    assert isinstance(error, InvalidRequest) and "longer than 0.001 s" in error.public
    assert len(driver.tokens("free")) == 64


def test_a_shutdown_ends_what_is_being_compiled_and_the_threads(make: Any) -> None:
    driver = make()
    gate = Gate(driver)
    heard: list[Outward] = []
    request = GenerateRequest("a", tuple(PROMPT), SamplingParams(n=2), ENDS, constraint=regex("[ab]{4}"))
    said: list[list[Inward]] = [[Submit(request)], [], [Shutdown()]]
    patience: list[float | None] = []

    def receive(waits: float | None) -> list[Inward]:
        patience.append(waits)
        return said.pop(0)

    driver.core.run(receive, heard.extend)
    assert patience[0] is None and all(waits is not None for waits in patience[1:]), "the loop looks for the grammar"
    assert heard == [Accepted("a"), *(Finished("a", sample, FinishReason.CANCELLED) for sample in (0, 1))]
    gate.opened.set()


def test_masks_are_computed_while_the_step_runs(make: Any) -> None:
    """The mask of a step waits until the device has begun with it: who makes masks first would wait in vain."""
    driver = make()
    ask(driver, "a", regex("[ab]{6}"))
    while not driver.records["a", 0].tokens:
        driver.step()
    begun, made = threading.Event(), threading.Event()
    state = driver.core._grammars._of_part["a"].state
    fill, launch = state.fill_mask, driver.program.launch

    def fill_mask(*arguments: Any) -> None:
        assert begun.wait(30), "the step has not begun"
        fill(*arguments)
        made.set()

    def launches(batch: Any) -> Any:
        begun.set()
        assert made.wait(30), "the mask is not made while the step runs"
        return launch(batch)

    state.fill_mask, driver.program.launch = fill_mask, launches
    driver.step()
    assert driver.records["a", 0].error is None and len(driver.tokens("a")) == 2


def test_nothing_is_kept_of_ended_requests(make: Any) -> None:
    driver = make()
    for number in range(5):
        ask(driver, str(number), regex("[ab]{4}"), SamplingParams(n=2))
    driver.step()
    time.sleep(0.2)
    driver.step()
    driver.handle(Cancel("3"))
    driver.run()
    grammars = driver.core._grammars
    assert not grammars._texts and not grammars._of_part and not grammars.num_compiling
