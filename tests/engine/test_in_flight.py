"""Two steps in flight over a device that chooses tokens: the same texts, whatever is found out a step late."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.engine.messages import Cancel, Shutdown, Submit
from quire.ops.batch import Batch
from quire.types.errors import StepFailed
from quire.types.request import Constraint, ConstraintKind, FinishReason, GenerateRequest, SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.engine.driver import GREEDY_64, Driver, expected
from tests.models.toys import some_tokens
from tests.runner.stand_in import ChoosingProgram

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SEEDED = SamplingParams(seed=3, temperature=0.9, top_k=30, top_p=0.9, min_p=0.01, max_tokens=24)
HOSTED = {
    "logprobs": replace(GREEDY, logprobs=2),
    "penalties": replace(GREEDY, frequency_penalty=0.4, repetition_penalty=1.2),
    "typical": SamplingParams(seed=5, typical_p=0.7, max_tokens=24),
    "scored": replace(GREEDY, prompt_logprobs=1),
}


class InFlight(Driver):
    """Proves all invariants after every step."""

    device_name = "chooser"

    @property
    def chooser(self) -> ChoosingProgram:
        inner = self.program.inner
        assert isinstance(inner, ChoosingProgram)
        return inner

    def step(self) -> bool:
        did = super().step()
        self.core.check()
        return did


class OneByOne(InFlight):
    device_name = "chooser-1"


def texts(driver: Driver, ways: dict[str, SamplingParams], **requests: Any) -> dict[str, list[int]]:
    """Everyone joins, a step after the one before, and runs to its end."""
    for index, (name, sampling) in enumerate(ways.items()):
        driver.submit(name, some_tokens(7 + 9 * index), sampling, **requests)
        driver.step()
    driver.run()
    return {name: driver.tokens(name) for name in ways}


def test_with_two_steps_in_flight_greedy_texts_are_those_of_transformers() -> None:
    driver = InFlight()
    found = texts(driver, {str(n): GREEDY_64 for n in range(5)})
    assert driver.chooser.most_waiting == 2
    assert found == {str(n): expected("llama", some_tokens(7 + 9 * n)) for n in range(5)}


@pytest.mark.parametrize(
    "settings", [{}, {"max_step_tokens": 16, "max_rows": 8}, {"num_blocks": 11}], ids=["", "chunks", "preempted"]
)
def test_all_sampling_parameters_give_the_same_text_with_one_or_two_steps_in_flight(settings: dict[str, Any]) -> None:
    ways = {"greedy": GREEDY, "seeded": SEEDED, **HOSTED, "greedy too": GREEDY}
    driver = InFlight(**settings)
    found = texts(driver, ways)
    assert found == texts(OneByOne(), ways)
    by_host = texts(Driver(), ways)
    del found["seeded"], by_host["seeded"]  # the device draws in the order of token ids, the host by likelihood
    assert found == by_host
    assert (driver.core.counters().num_preemptions > 0) == ("num_blocks" in settings)
    assert driver.chooser.most_waiting == 2


@pytest.mark.parametrize("way", HOSTED)
def test_host_sampled_rows_run_beside_device_sampled_ones(way: str) -> None:
    ways = {"before": GREEDY, "it": HOSTED[way], "after": SEEDED}
    deep, host = InFlight(), Driver()
    assert texts(deep, ways)["it"] == texts(host, ways)["it"]
    for name in ("logprobs", "prompt_logprobs"):
        said, wanted = (getattr(driver.records["it", 0], name) for driver in (deep, host))
        assert [each.token for each in said] == [each.token for each in wanted]
        assert np.allclose([each.logprob for each in said], [each.logprob for each in wanted], atol=1e-4)


def test_a_step_waits_for_the_previous_one_only_if_it_starts_from_a_host_sampled_token() -> None:
    driver = InFlight()
    driver.submit("plain", some_tokens(9), GREEDY_64)
    driver.submit("hosted", some_tokens(9), replace(HOSTED["logprobs"], max_tokens=6))
    while not driver.records["hosted", 0].has_ended:
        driver.chooser.most_waiting = 0
        driver.step()
        assert driver.chooser.most_waiting <= 1 or driver.records["hosted", 0].has_ended
    driver.step()
    driver.chooser.most_waiting = 0
    driver.step()
    assert driver.chooser.most_waiting == 2


def test_a_stop_found_one_step_late_has_no_effect_on_the_output() -> None:
    prompt = some_tokens(20)
    text = expected("llama", prompt)
    end = text.index(text[6]) + 1
    driver = InFlight(max_rows=2)
    driver.submit("stops", prompt, replace(GREEDY_64, stop_token_ids=(text[6],)))
    driver.submit("on", prompt, GREEDY_64)
    driver.submit("next", some_tokens(31), GREEDY_64)  # takes the row that the first one leaves
    driver.run()
    assert driver.tokens("stops") == text[:end] and driver.records["stops", 0].finish is FinishReason.STOP
    assert driver.tokens("on") == text and driver.tokens("next") == expected("llama", some_tokens(31))
    driver.submit("again", [*prompt, *text[:end]], replace(GREEDY_64, max_tokens=9))
    assert driver.run().tokens("again") == expected("llama", [*prompt, *text[:end]], 9)
    assert (
        driver.records["again", 0].num_hit >= len(prompt) + end - 1
    )  # what was computed after the stop is not in there


def test_a_cancelled_row_is_reused_while_its_last_step_is_in_flight() -> None:
    driver = InFlight(max_rows=2, max_step_tokens=32)
    for name in "ab":
        driver.submit(name, some_tokens(10), GREEDY_64)
    for name in ("c", "d", "e"):
        for _ in range(4):
            driver.step()
        driver.submit(name, some_tokens(12 + ord(name) % 5), GREEDY)
        driver.handle(Cancel({"c": "a", "d": "b", "e": "d"}[name]))
    driver.run()
    for name in ("c", "e"):
        assert driver.tokens(name) == expected("llama", some_tokens(12 + ord(name) % 5), 24)
    assert [driver.records[name, 0].finish for name in "abd"] == [FinishReason.CANCELLED] * 3
    assert len(driver.cancels()) == 3


# ── failures ──


def spoiled(driver: InFlight, row: int) -> Callable[[Batch], Any]:
    """A launch whose distribution for one entry is not a number."""
    launch = driver.chooser.inner.launch

    def spoils(batch: Batch) -> Any:
        done = launch(batch)
        done.result().logits[row] = np.nan  # type: ignore[index]
        return done

    return spoils


@pytest.mark.parametrize("row, name", [(1, "bb"), (2, "ccc")], ids=["device's", "host's"])
def test_a_row_without_a_valid_distribution_fails_alone(row: int, name: str) -> None:
    driver = InFlight()
    ways = {"a": GREEDY_64, "bb": GREEDY_64, "ccc": replace(GREEDY_64, logprobs=0)}
    for each, sampling in ways.items():
        driver.submit(each, some_tokens(10 + len(each)), sampling)
    for _ in range(5):
        driver.step()
    driver.chooser.inner.launch = spoiled(driver, row)  # type: ignore[method-assign]
    driver.step()
    del driver.chooser.inner.launch
    driver.run()
    error = driver.records[name, 0].error
    assert isinstance(error, StepFailed) and "not valid numbers" in error.public
    for each in ways.keys() - {name}:
        assert driver.tokens(each) == expected("llama", some_tokens(10 + len(each)))


@pytest.mark.parametrize("where", ["launch", "compute_next"])
def test_a_failed_step_fails_its_parts_and_later_requests_run(where: str, caplog: Any) -> None:
    driver = InFlight()
    for name in "ab":
        driver.submit(name, some_tokens(10), GREEDY_64)
    for _ in range(4):
        driver.step()

    def fails(*_: Any) -> Any:
        driver.chooser.waiting.clear()
        raise MemoryError("the device is full of bees")

    setattr(driver.chooser, where, fails)
    driver.step()
    delattr(driver.chooser, where)
    driver.submit("c", some_tokens(12), GREEDY_64)
    driver.run()
    for name in "ab":
        error = driver.records[name, 0].error
        assert isinstance(error, StepFailed) and "bees" not in error.public
    assert "bees" in caplog.text and driver.tokens("c") == expected("llama", some_tokens(12))


def test_a_shutdown_collects_what_is_in_flight_and_ends_every_request() -> None:
    driver = InFlight()
    heard: list[Any] = []
    said = [[Submit(GenerateRequest(name, (1, 2, 3), GREEDY_64)) for name in "abc"], [], [], [Shutdown()]]
    driver.core.run(lambda patience: said.pop(0), heard.extend)
    ends = [message for message in heard if getattr(message, "reason", None) is FinishReason.CANCELLED]
    assert len(ends) == 3 and not driver.chooser.waiting


# ── grammars ──

ENDS = (129, 130)
FORM = r'\{"name": "[a-z]{1,12}", "(left|right)": [1-9]\d{0,3}\}'


def constrained(driver: Driver, name: str, sampling: SamplingParams, form: str = FORM) -> None:
    rule = Constraint(ConstraintKind.REGEX, form)
    driver.submit(name, some_tokens(21), sampling, eos_token_ids=ENDS, constraint=rule)


@pytest.fixture
def make(toy_folder: Path) -> Callable[..., Driver]:
    pytest.importorskip("llguidance")
    return lambda kind, **settings: kind(checkpoint=open_checkpoint(toy_folder), **settings)


@pytest.mark.parametrize("jumps", [True, False])
def test_constrained_requests_beside_free_ones_have_the_same_output_as_alone(make: Any, jumps: bool) -> None:
    ways = {"greedy": GREEDY_64, "seeded": replace(SEEDED, max_tokens=64), "hosted": replace(GREEDY_64, logprobs=0)}
    driver = make(InFlight, jump_forward=jumps)
    driver.submit("free", some_tokens(9), GREEDY_64)
    for name, sampling in ways.items():
        constrained(driver, name, sampling)
    driver.run()
    assert driver.tokens("free") == expected("llama", some_tokens(9))
    for name, sampling in ways.items():
        alone = make(OneByOne, jump_forward=jumps)
        constrained(alone, name, sampling)
        assert driver.tokens(name) == alone.run().tokens(name)
        text = "".join(chr(token) for token in driver.tokens(name) if token < 128)
        assert re.fullmatch(FORM, text) and driver.records[name, 0].finish is FinishReason.STOP
    assert driver.chooser.most_waiting == 2
    host = make(Driver, jump_forward=jumps)
    constrained(host, "greedy", GREEDY_64)
    assert host.run().tokens("greedy") == driver.tokens("greedy")


def test_a_failing_grammar_fails_its_own_request_and_the_device_still_gets_masks(make: Any, caplog: Any) -> None:
    driver = make(InFlight)
    for name in ("bad", "good"):
        constrained(driver, name, GREEDY_64)
    while not driver.records["good", 0].tokens:
        driver.step()
    state = driver.core._grammars._texts["bad", 0].state

    def breaks(*_: Any) -> None:
        raise RuntimeError("a parser lost its way")

    state.fill_mask = breaks
    driver.run()
    error = driver.records["bad", 0].error
    assert isinstance(error, StepFailed) and "RuntimeError" in error.public
    assert driver.records["good", 0].finish is FinishReason.STOP


def test_masks_that_never_come_fail_the_step_and_not_the_engine(make: Any, caplog: Any) -> None:
    driver = make(InFlight)
    constrained(driver, "a", GREEDY_64)
    driver.submit("later", some_tokens(9), replace(GREEDY_64, max_tokens=40))

    def breaks(*_: Any) -> None:
        raise RuntimeError("no thread is left")

    fill = driver.core._grammars._fill
    while not driver.records["a", 0].tokens:
        driver.step()
    driver.core._grammars._fill = breaks
    while not driver.records["a", 0].has_ended:
        driver.step()
    driver.core._grammars._fill = fill
    assert isinstance(driver.records["a", 0].error, StepFailed) and "no thread is left" in caplog.text
    constrained(driver, "b", GREEDY_64)
    assert driver.run().records["b", 0].finish is FinishReason.STOP
