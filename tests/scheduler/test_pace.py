"""The measured pace: from steps with prompts, without, and with drafts."""

from __future__ import annotations

import pytest

from quire.scheduler.pace import Pace
from quire.types.step import Part, PartResult, StepPlan, StepResult

pytestmark = pytest.mark.pure


def record(pace: Pace, seconds: float, *sizes: int, num_logits: int = 1, num_output: int = 1) -> None:
    """Record a step whose parts have so many tokens; 1: a stream."""
    parts = tuple(
        Part(str(row), row, 0, None if size == 1 else tuple(range(size)), num_logits if size > 1 else 1, ())
        for row, size in enumerate(sizes)
    )
    results = tuple(PartResult(tuple(range(num_output))) for _ in parts)
    pace.record_step(StepPlan(1, parts, num_tokens=sum(sizes)), StepResult(1, results, seconds))


def test_nothing_is_measured_before_the_first_step():
    pace = Pace()
    assert pace.prompt_rate == pace.decode_seconds == pace.decode_row_seconds == 0.0


def test_the_prompt_rate_is_that_of_further_tokens():
    pace = Pace()
    for size in (100, 500, 1000, 200) * 5:
        record(pace, 0.010 + size / 10_000, size, 1, 1)
    assert pace.prompt_rate == pytest.approx(10_000)
    same = Pace()
    for _ in range(5):
        record(same, 0.1, 1000)
    assert same.prompt_rate == pytest.approx(10_000)


def test_decoding_is_measured_apart_from_prompts_and_by_the_number_of_streams():
    pace = Pace()
    for num_rows in (1, 4, 16, 8) * 10:
        record(pace, 0.005 + 0.001 * (num_rows - 1), *[1] * num_rows)
        record(pace, 9.0, 5000)
    assert pace.decode_seconds == pytest.approx(0.005)
    assert pace.decode_row_seconds == pytest.approx(0.001)


def test_accepted_drafts_make_a_stream_faster():
    pace = Pace()
    for _ in range(5):
        record(pace, 0.03, 4, 4, num_logits=4, num_output=3)
    assert pace.decode_seconds == pytest.approx(0.01) and pace.prompt_rate == 0.0


def test_old_steps_are_forgotten():
    pace = Pace()
    for rate, count in ((1000, 100), (5000, 200)):
        for size in (100, 300) * count:
            record(pace, size / rate, size)
    assert pace.prompt_rate == pytest.approx(5000, rel=0.01)
