"""A part that reads the state of other tokens than its own fails, and no other part does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.runner.runner import Runner
from quire.types.errors import StepFailed
from quire.types.step import Part, SaveState, StateChange, StepPlan
from tests.runner.stand_in import ChoosingProgram
from tests.runner.test_runner import LIMITS, VOCAB, Echo, join, run

pytestmark = pytest.mark.pure

STATES = replace(LIMITS, num_states=8)


def new_runner(device_samples: bool) -> Runner:
    echo = Echo()
    program = ChoosingProgram(echo, STATES.max_rows, 2) if device_samples else echo  # type: ignore[arg-type]
    return Runner(program, STATES, VOCAB, checks_states=True)


def leader() -> StepPlan:
    """Row 0 computes 5 6 7 8, stores the state of 5 6 in slot 3, and its own in slot 1."""
    part = Part("r0", 0, 0, (5, 6, 7, 8), 1, (0,))
    return StepPlan(1, (part,), (join(0, (5, 6, 7, 8)),), states=(StateChange(0, -1, 1),), saves=(SaveState(0, 2, 3),))


def follower(tokens: tuple[int, ...], start: int, slot: int) -> StepPlan:
    """Row 0 continues with its own token, and row 1 resumes from a slot."""
    parts = (Part("r0", 0, 4, None, 1, (4,)), Part("r1", 1, start, tokens[start:], 1, (2,)))
    return StepPlan(2, parts, (join(1, tokens),), states=(StateChange(1, slot, 2),))


@pytest.mark.parametrize("device_samples", [False, True])
def test_a_row_resumes_from_a_state_of_its_own_tokens(device_samples: bool) -> None:
    runner = new_runner(device_samples)
    flights = [runner.launch(leader()), runner.launch(follower((5, 6, 20), 2, 3))]
    assert [[part.tokens for part in runner.collect(flight).parts] for flight in flights] == [[(9,)], [(10,), (21,)]]
    third = StepPlan(3, (Part("r1", 1, 3, None, 1, ()), Part("r0", 0, 5, None, 1, ())))
    assert [part.tokens for part in run(runner, third).parts] == [(22,), (11,)]


@pytest.mark.parametrize("tokens, start, slot", [((5, 7, 20), 2, 3), ((5, 6, 7, 20), 3, 3), ((5, 6, 20), 2, 5)])
@pytest.mark.parametrize("device_samples", [False, True])
def test_another_text_another_length_and_an_unwritten_slot_are_refused(
    device_samples: bool, tokens: tuple[int, ...], start: int, slot: int
) -> None:
    runner = new_runner(device_samples)
    runner.launch(leader())
    good, bad = runner.collect(runner.launch(follower(tokens, start, slot))).parts
    assert good.tokens == (10,)
    assert isinstance(bad.error, StepFailed) and f"State {slot} " in str(bad.error) and "request r1" in str(bad.error)


def test_a_corrupted_digest_is_noticed_in_the_next_step_of_its_row() -> None:
    runner = new_runner(False)
    run(runner, leader())
    assert runner._digests is not None
    runner._digests.of_slot[1] = b"other tokens"
    broken, fine = run(runner, follower((5, 6, 20), 2, 3)).parts
    assert isinstance(broken.error, StepFailed) and "State 1 " in str(broken.error) and fine.tokens == (21,)


def test_a_failed_parts_states_cannot_be_resumed() -> None:
    runner = new_runner(False)
    part = Part("r0", 0, 0, (5, 6, 45), 1, (0,))  # 45 has no valid distribution
    plan = StepPlan(1, (part,), (join(0, (5, 6, 45)),), states=(StateChange(0, -1, 1),), saves=(SaveState(0, 2, 3),))
    assert run(runner, plan).parts[0].error is not None
    resumed = Part("r1", 1, 2, (7,), 1, (2,))
    result = run(runner, StepPlan(2, (resumed,), (join(1, (5, 6, 7)),), (0,), states=(StateChange(1, 3, 2),)))
    assert "State 3 " in str(result.parts[0].error)


def test_a_row_goes_back_to_the_state_before_a_rejected_draft() -> None:
    runner = new_runner(False)
    run(runner, leader())
    drafted = Part("r0", 0, 4, (9, 10, 30), 3, (1,))
    (part,) = run(runner, StepPlan(2, (drafted,), states=(StateChange(0, 1, 4),))).parts
    assert part.tokens == (10, 11)
    again = StepPlan(3, (Part("r0", 0, 4, (9, 10, 11), 1, ()),), states=(StateChange(0, 1, 1),))
    assert run(runner, again).parts[0].tokens == (12,)
    wrong = StepPlan(4, (Part("r0", 0, 7, None, 1, ()),), states=(StateChange(0, 4, 1),))
    assert isinstance(run(runner, wrong).parts[0].error, StepFailed), "slot 4 has the state after the wrong draft"
