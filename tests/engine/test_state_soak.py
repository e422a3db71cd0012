"""A hybrid under eviction pressure, with every state checked against the tokens that it was computed from."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import pytest

from quire.engine.messages import Cancel
from quire.runner.state_digests import StateDigests
from quire.types.errors import StepFailed
from quire.types.request import CacheKey, SamplingParams
from tests.engine.driver import Driver
from tests.models.toys import VOCAB, some_tokens

pytestmark = pytest.mark.device

SETTINGS = {"num_blocks": 24, "max_rows": 6, "max_step_tokens": 40, "max_context": 128, "check_states": True}


class HybridDriver(Driver):
    """LFM2, whose layers are short convolutions and attention, in few blocks and few states."""

    def __init__(self, num_states: int = 12, **settings: Any) -> None:
        super().__init__("lfm2", **{**SETTINGS, "num_states": num_states, **settings})

    @property
    def digests(self) -> StateDigests:
        digests = self.core._runner._digests  # type: ignore[attr-defined]
        assert isinstance(digests, StateDigests)
        return digests


class AheadDriver(HybridDriver):
    """With two steps in flight, on a device that samples."""

    device_name: ClassVar[str] = "chooser"


def greedy(num_tokens: int, n: int = 1) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, n=n)


@pytest.mark.parametrize("kind", [HybridDriver, AheadDriver])
def test_no_wrong_state_is_used_and_nothing_leaks(kind: type[HybridDriver]) -> None:
    chance, driver = random.Random(1), kind()
    prefixes = [some_tokens(60)[start:] for start in (0, 7, 20)]
    asked: dict[str, tuple[list[int], int]] = {}
    while len(asked) < 25 or driver.step():
        if len(asked) < 25 and chance.random() < 0.4:
            name, num_tokens = str(len(asked)), chance.randint(1, 20)
            prompt = [*chance.choice(prefixes)[: chance.randint(1, 50)], *some_tokens(chance.randint(1, 9))]
            asked[name] = prompt, num_tokens
            driver.submit(name, prompt, greedy(num_tokens, chance.choice([1, 1, 2])), priority=chance.choice([0, 0, 1]))
        if asked and chance.random() < 0.02:
            driver.handle(Cancel(chance.choice(list(asked))))
        driver.step()
    driver.run()
    counters = driver.core.counters()
    assert counters.num_preemptions > 0 and counters.num_held_blocks == 0
    cold = HybridDriver(num_blocks=200, max_context=256, num_states=40)
    for (name, sample), record in driver.records.items():
        assert record.error is None, "no state of another text was read"
        if len(record.tokens) == asked[name][1]:
            cold.submit(f"{name} {sample}", asked[name][0], greedy(asked[name][1]), cache=CacheKey(salt=name))
            cold.run()
            assert record.tokens == cold.tokens(f"{name} {sample}")


@pytest.mark.parametrize("kind", [HybridDriver, AheadDriver])
def test_a_state_whose_digest_is_corrupted_is_refused_by_its_name(kind: type[HybridDriver]) -> None:
    driver, prompt = kind(), some_tokens(50)
    driver.submit("before", prompt, greedy(4))
    driver.run()
    digests = driver.digests.of_slot
    digests.update({slot: bytes(len(digest)) for slot, digest in digests.items()})
    driver.submit("after", [*prompt, VOCAB - 1], greedy(4))
    driver.submit("other", some_tokens(20)[::-1], greedy(4))
    driver.run()
    error = driver.records["after", 0].error
    assert isinstance(error, StepFailed) and "was not computed from the first" in error.public
    assert len(driver.tokens("other")) == 4, "a request that begins with zeros is served"
