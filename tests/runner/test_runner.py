"""Launch and collect: results by part, the order of steps, and errors that stay where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.devices.base import Limits, StepOutput
from quire.ops.batch import Batch
from quire.runner.flight import Masks
from quire.runner.runner import Runner
from quire.sampling.mask import blank
from quire.types.errors import StepFailed
from quire.types.request import SamplingParams
from quire.types.step import Join, Part, StepPlan, StepResult

pytestmark = pytest.mark.pure

VOCAB = 50
LIMITS = Limits(max_tokens=64, max_rows=4, max_logits=64, max_blocks=8, num_blocks=32, block_tokens=4)
GREEDY = SamplingParams(temperature=0.0)


class Echo:
    """A program whose likeliest next token is the last one plus one; a token above 40 gives no distribution."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.num_waiting = 0

    def launch(self, batch: Batch) -> Any:
        self.batches.append(batch.token_ids.tolist())
        tokens = batch.token_ids[batch.logits_at]
        logits = np.zeros((len(tokens), VOCAB), np.float32)
        logits[np.arange(len(tokens)), (tokens + 1) % VOCAB] = 5.0
        logits[tokens > 40] = np.nan
        self.num_waiting += 1
        return Waiting(self, logits)


class Waiting:
    def __init__(self, program: Echo, logits: np.ndarray) -> None:
        self.program, self.logits = program, logits

    def result(self) -> StepOutput:
        self.program.num_waiting -= 1
        return StepOutput(logits=self.logits)


def join(row: int, tokens: tuple[int, ...], sampling: SamplingParams = GREEDY) -> Join:
    return Join(f"r{row}", row, sampling, 0, tokens, len(tokens))


def run(runner: Runner, plan: StepPlan) -> StepResult:
    return runner.collect(runner.launch(plan))


def test_results_are_in_part_order_and_sampled_tokens_feed_the_next_step() -> None:
    program = Echo()
    runner = Runner(program, LIMITS, VOCAB)
    first = StepPlan(
        1,
        (Part("r2", 2, 0, (7, 8), 1, (0,)), Part("r0", 0, 0, (1, 2, 3), 0, (1,)), Part("r1", 1, 0, (20,), 1, (2,))),
        (join(2, (7, 8)), join(0, (1, 2, 3, 4)), join(1, (20,))),
    )
    assert [part.tokens for part in run(runner, first).parts] == [(9,), (), (21,)]
    second = StepPlan(2, (Part("r1", 1, 1, None, 1, ()), Part("r0", 0, 3, (4,), 1, ()), Part("r2", 2, 2, None, 1, ())))
    result = run(runner, second)
    assert result.number == 2 and result.seconds > 0
    assert [part.tokens for part in result.parts] == [(22,), (5,), (10,)]
    assert program.batches[1] == [21, 4, 9]


def test_drafts_are_accepted_up_to_the_first_mismatch() -> None:
    runner = Runner(Echo(), LIMITS, VOCAB)
    plan = StepPlan(
        1,
        (Part("r0", 0, 0, (5, 6, 7, 9), 4, (0,)), Part("r1", 1, 0, (5, 6, 7), 3, (1,))),
        (join(0, (5,)), join(1, (5,))),
    )
    assert [part.tokens for part in run(runner, plan).parts] == [(6, 7, 8), (6, 7, 8)]
    after = StepPlan(2, (Part("r0", 0, 3, None, 1, ()), Part("r1", 1, 3, None, 1, ())))
    assert [part.tokens for part in run(runner, after).parts] == [(9,), (9,)]


def test_a_mask_applies_to_its_part_alone_and_a_mask_error_fails_that_part() -> None:
    runner = Runner(Echo(), LIMITS, VOCAB)
    parts = tuple(Part(f"r{row}", row, 0, (5,), 1, (row,)) for row in range(3))
    drafted = Part("r3", 3, 0, (5, 6, 7), 3, (3,))
    plan = StepPlan(1, (*parts, drafted), tuple(join(row, (5,)) for row in range(4)))
    mask, of_drafts = blank(1, VOCAB), blank(3, VOCAB)
    mask[0, 30 // 32], of_drafts[0, 0], of_drafts[1, 0] = 1 << 30, 1 << 6, 1 << 9
    masks: dict[int, Any] = {1: mask, 2: StepFailed("no grammar"), 3: of_drafts}
    asked: list[int] = []

    def come() -> dict[int, Any]:
        asked.append(1)
        return masks

    flight = runner.launch(plan, Masks((1, 2, 3), come))
    assert not asked, "masks are not waited for before the step has run"
    free, held, failed, tried = runner.collect(flight).parts
    assert free.tokens == (6,) and held.tokens == (30,) and tried.tokens == (6, 9)
    assert failed.error is masks[2] and not failed.tokens


def test_a_bad_row_fails_alone_and_a_failed_launch_fails_its_parts(caplog: pytest.LogCaptureFixture) -> None:
    program = Echo()
    runner = Runner(program, LIMITS, VOCAB)
    plan = StepPlan(
        1, (Part("r0", 0, 0, (45,), 1, (0,)), Part("r1", 1, 0, (5,), 1, (1,))), (join(0, (45,)), join(1, (5,)))
    )
    bad, good = run(runner, plan).parts
    assert isinstance(bad.error, StepFailed) and not bad.tokens and good.tokens == (6,)
    run(runner, StepPlan(2, (), leaves=(0,)))

    def breaks(batch: Batch) -> Any:
        raise ValueError("no such kernel")

    program.launch = breaks  # type: ignore[method-assign]
    (part,) = run(runner, StepPlan(3, (Part("r1", 1, 1, None, 1, ()),))).parts
    assert isinstance(part.error, StepFailed) and "no such kernel" in caplog.text


def test_a_step_launched_before_the_last_one_is_collected_gets_its_tokens() -> None:
    program = Echo()
    runner = Runner(program, LIMITS, VOCAB)
    first = runner.launch(StepPlan(1, (Part("r0", 0, 0, (3,), 1, (0,)),), (join(0, (3,)),)))
    assert program.num_waiting == 1
    second = runner.launch(StepPlan(2, (Part("r0", 0, 1, None, 1, ()),)))
    assert runner.collect(first).parts[0].tokens == (4,)
    assert runner.collect(second).parts[0].tokens == (5,)
    assert runner.collect(second) is runner.collect(second)


def test_a_scoring_part_reports_every_next_token_of_its_prompt() -> None:
    runner = Runner(Echo(), LIMITS, VOCAB)
    scored = SamplingParams(temperature=0.0, prompt_logprobs=1)
    prompt = (3, 4, 9, 10, 11)
    joins = (join(0, prompt, scored), join(1, (30,)))
    parts = (Part("r0", 0, 0, prompt[:3], 0, (0, 1), True), Part("r1", 1, 0, (30,), 1, (2,)))
    first, other = run(runner, StepPlan(1, parts, joins)).parts
    assert [each.token for each in first.prompt_logprobs] == [4, 9, 10] and other.tokens == (31,)
    assert [each.logprob > -1 for each in first.prompt_logprobs] == [True, False, True]
    (last,) = run(runner, StepPlan(2, (Part("r0", 0, 3, prompt[3:], 1, (), True),))).parts
    assert [each.token for each in last.prompt_logprobs] == [11] and last.tokens == (12,)
    assert last.prompt_logprobs[0].top[0][0] == 11
