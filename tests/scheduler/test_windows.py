"""Window groups: a request holds the blocks of its window and its chunk, and what is behind them stays cached."""

from __future__ import annotations

import random

import pytest

from quire.config import SchedulerConfig
from quire.types.errors import StepFailed
from tests.scheduler.simulator import Groups, Simulator, expected_output, request

pytestmark = pytest.mark.pure

BLOCK = 16
CHUNK = 128


def new_simulator(window: int, num_blocks: int = 2000, depth: int = 1, num_states: int = 0) -> Simulator:
    config = SchedulerConfig(max_rows=16, max_step_tokens=CHUNK, max_context=8192)
    groups = Groups(((window, num_blocks),), num_states=num_states)
    return Simulator(config, 4000, BLOCK, depth, groups)


def most_held(simulator: Simulator) -> list[int]:
    """Return the most blocks of the window group that a request holds, updated after every step."""
    most = [0]

    def on_step(sim: Simulator) -> None:
        for state in sim.scheduler._running:
            assert state.lease is not None
            window = state.lease.windows[0]
            most[0] = max(most[0], len(window.blocks) - window.first)

    simulator.on_step = on_step
    return most


@pytest.mark.parametrize("num_states", [0, 20])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("window", [1, 33, 512])
def test_a_lease_holds_no_more_than_its_window_and_its_chunks(window: int, depth: int, num_states: int) -> None:
    simulator = new_simulator(window, depth=depth, num_states=num_states)
    most = most_held(simulator)
    chance = random.Random(1)
    shared = tuple(chance.randrange(1000) for _ in range(1500))
    prompts = [shared[: 300 * n] + tuple(chance.randrange(1000) for _ in range(900)) for n in range(6)]
    simulator.run([(n * 0.1, request(str(n), prompt, 300)) for n, prompt in enumerate(prompts)])
    for n, prompt in enumerate(prompts):
        assert simulator.records[str(n), 0].tokens == expected_output(prompt, 300)
    # A step in flight may still be read: each one adds a chunk.
    assert most[0] <= -(-(window + depth * CHUNK) // BLOCK) + 2


def test_what_is_behind_the_window_is_found_again_until_it_is_evicted() -> None:
    prompt = tuple(range(1000))
    for num_blocks, num_hit in ((200, 512), (16, 0)):
        simulator = new_simulator(window=64, num_blocks=num_blocks)
        simulator.run([(0.0, request("a", prompt, 4))])
        simulator.run([(simulator.now, request("b", (*prompt[:512], 7), 4))])
        assert simulator.records["b", 0].num_hit == num_hit
        assert simulator.records["b", 0].tokens == expected_output((*prompt[:512], 7), 4)


def test_a_hit_needs_only_the_windows_blocks_before_it() -> None:
    """The pool has room for one window: the answer's end can be resumed though the prompt's blocks are gone."""
    simulator = new_simulator(window=64, num_blocks=16)
    prompt = tuple(range(1000))
    simulator.run([(0.0, request("a", prompt, 20))])
    answer = tuple(simulator.records["a", 0].tokens)
    simulator.run([(simulator.now, request("b", (*prompt, *answer, 7), 4))])
    assert simulator.records["b", 0].num_hit == 1019


def test_samples_share_a_window_and_fall_back_to_the_tree_once_it_has_moved_on() -> None:
    simulator = new_simulator(window=20)
    prompt = tuple(range(100))
    simulator.run([(0.0, request("a", prompt, 8, n=3))])
    assert simulator.device.num_computed == 100 + 2 + 3 * 7, "each sample computes the prompt's last token"
    config = SchedulerConfig(max_rows=2, max_step_tokens=CHUNK, max_context=8192)
    crowded = Simulator(config, 4000, BLOCK, 1, Groups(((20, 40),)))
    crowded.run([(0.0, request("other", range(500, 520), 150)), (0.0, request("a", prompt, 200, n=2))])
    assert crowded.records["a", 1].tokens == expected_output(prompt, 200, 1)
    assert crowded.records["a", 1].num_hit >= 80


@pytest.mark.parametrize("depth", [1, 2])
def test_requests_that_depend_on_a_failed_part_start_again(depth: int) -> None:
    simulator = new_simulator(window=20, depth=depth)
    shared = tuple(range(64))
    for name in "abcd":
        simulator.submit(request(name, (*shared, ord(name), 5), 8))
    simulator.device.refuse = lambda part: StepFailed("no") if len(simulator.plans) == 1 and part.row == 0 else None
    simulator.run()
    assert len(simulator.plans[0].parts) == 4 and isinstance(simulator.records["a", 0].error, StepFailed)
    for name in "bcd":
        assert simulator.records[name, 0].tokens == expected_output((*shared, ord(name), 5), 8)
