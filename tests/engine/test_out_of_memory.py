"""A device that has no memory for a step: one request ends at each failure, and the others say what they say alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.engine.messages import Failed
from quire.ops.batch import Batch
from quire.types.errors import OutOfDeviceMemory
from quire.types.request import Constraint, ConstraintKind, FinishReason, SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.devices.cpu.programs import HAS_NATIVE
from tests.engine.driver import GREEDY_64, Driver, expected
from tests.models.toys import some_tokens
from tests.runner.stand_in import ChoosingProgram

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
WAYS = {
    "plain": GREEDY,
    "seeded": SamplingParams(seed=3, temperature=0.9, top_k=30, max_tokens=24),
    "logprobs": replace(GREEDY, logprobs=2),
    "penalties": replace(GREEDY, frequency_penalty=0.4, repetition_penalty=1.2),
}
LARGE = some_tokens(120)


class Short(Driver):
    """Its device fails to launch what does not fit. All invariants are proven after every step."""

    def __init__(self, device_name: str = "chooser", **settings: Any) -> None:
        self.device_name = device_name  # type: ignore[misc]
        super().__init__(**settings)
        self.fits: Callable[[Batch], bool] = lambda batch: True
        self.num_failures = 0
        launch = self.program.launch

        def launch_if_it_fits(batch: Batch) -> Any:
            if self.fits(batch):
                return launch(batch)
            self.num_failures += 1
            raise OutOfDeviceMemory

        self.program.launch = launch_if_it_fits  # type: ignore[method-assign]

    def fail(self, count: int) -> None:
        """The next launches, so many of them."""
        left = iter(range(count))
        self.fits = lambda batch: next(left, None) is None

    def step(self) -> bool:
        did = super().step()
        self.core.check()
        return did

    @property
    def chooser(self) -> ChoosingProgram:
        assert isinstance(self.program.inner, ChoosingProgram)
        return self.program.inner

    def ended(self) -> list[str]:
        """By a want of memory."""
        failed = [message for message in self.messages if isinstance(message, Failed)]
        assert all(isinstance(message.error, OutOfDeviceMemory) for message in failed)
        return [message.request_id for message in failed]


def begun(driver: Driver, ways: dict[str, SamplingParams]) -> None:
    """All of them stream."""
    for index, (name, sampling) in enumerate(ways.items()):
        driver.submit(name, some_tokens(9 + 2 * index), sampling)
    while not all(driver.records[name, 0].tokens for name in ways):
        driver.step()


def alone(ways: dict[str, SamplingParams], device_name: str, name: str) -> list[int]:
    """What one of these requests says if there are no others."""
    driver = Short(device_name)
    driver.submit(name, some_tokens(9 + 2 * list(ways).index(name)), ways[name])
    return driver.run().tokens(name)


DEVICES = ["stand-in", "chooser-1", "chooser", *(["cpu"] if HAS_NATIVE else [])]


@pytest.mark.parametrize("device_name", DEVICES)
def test_a_prompt_that_does_not_fit_into_memory_fails_alone(device_name: str, caplog: Any) -> None:
    driver = Short(device_name)
    begun(driver, WAYS)
    driver.fits = lambda batch: len(batch.token_ids) <= 40
    driver.submit("large", LARGE, GREEDY_64)
    driver.submit("small", some_tokens(7), GREEDY_64)
    driver.run()
    assert driver.ended() == ["large"] and driver.num_failures == 2
    for name in WAYS:
        assert driver.tokens(name) == alone(WAYS, device_name, name), name
    assert driver.tokens("small") == expected("llama", some_tokens(7))
    assert "large" in caplog.text and "memory_share" in driver.records["large", 0].error.public  # type: ignore[union-attr]
    driver.fits = lambda batch: True
    driver.submit("again", LARGE, GREEDY_64)
    assert driver.run().tokens("again") == expected("llama", LARGE)


@pytest.mark.parametrize("device_name", DEVICES)
@pytest.mark.parametrize("num_failures, ended", [(1, []), (2, ["penalties"]), (3, ["penalties", "logprobs"])])
def test_each_failure_after_the_first_fails_one_request(device_name: str, num_failures: int, ended: list[str]) -> None:
    driver = Short(device_name)
    begun(driver, WAYS)
    driver.fail(num_failures)
    driver.run()
    assert driver.num_failures == num_failures and sorted(driver.ended()) == sorted(ended)
    for name in set(WAYS) - set(ended):
        assert driver.tokens(name) == alone(WAYS, device_name, name), name


@pytest.mark.parametrize("at", range(1, 9))
def test_requests_beside_a_failed_step_have_the_same_output_as_alone(at: int) -> None:
    """Prompts in chunks, hits, a queue for rows, and a step in flight; the same plans but for one request."""
    driver = Short("chooser", max_step_tokens=32, max_rows=4)
    for index in range(6):
        driver.submit(str(index), some_tokens(20 + 11 * index), replace(GREEDY_64, max_tokens=12))
    for _ in range(at):
        driver.step()
    driver.fail(2)
    driver.run()
    (ended,) = driver.ended()
    for index in range(6):
        if str(index) != ended:
            assert driver.tokens(str(index)) == expected("llama", some_tokens(20 + 11 * index), 12)


def test_when_nothing_fits_all_parts_fail_and_the_engine_continues() -> None:
    driver = Short()
    begun(driver, WAYS)
    driver.fits = lambda batch: False
    while not all(driver.records[name, 0].has_ended for name in WAYS):
        driver.step()
    assert sorted(driver.ended()) == sorted(WAYS)
    driver.fits = lambda batch: True
    driver.submit("after", some_tokens(12), GREEDY_64)
    assert driver.run().tokens("after") == expected("llama", some_tokens(12))


def test_a_part_keeps_its_own_mask_when_another_is_removed_from_the_step(toy_folder: Path) -> None:
    """Its part comes after the one that is taken out. It was compiled before, so both prompts are in one step."""
    pytest.importorskip("llguidance")
    rule = Constraint(ConstraintKind.REGEX, r"[a-z]{3,9}-(left|right)-[0-9]{2}")
    driver = Short("chooser", checkpoint=open_checkpoint(toy_folder), jump_forward=False)
    driver.submit("alone", [3, *some_tokens(20)], GREEDY_64, eos_token_ids=(129, 130), constraint=rule)
    driver.run()
    driver.fits = lambda batch: len(batch.token_ids) <= 60
    driver.submit("large", LARGE, GREEDY_64, priority=-1)
    driver.submit("held", [3, *some_tokens(20)], GREEDY_64, eos_token_ids=(129, 130), constraint=rule)
    driver.step()
    assert driver.num_failures == 2 and driver.chooser.waiting[-1].num_masked == 1
    driver.run()
    assert driver.ended() == ["large"] and driver.records["held", 0].finish is FinishReason.STOP
    assert driver.tokens("held") == driver.tokens("alone")
