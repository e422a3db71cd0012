"""The scheduler's behaviour, with a fake device that records every slot."""

from __future__ import annotations

import pytest

from quire.cache.kv_cache import KVCache
from quire.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler
from quire.types.errors import (
    CacheTooSmall,
    ContextTooLong,
    DeadlineExceeded,
    DuplicateRequest,
    InvalidRequest,
    Overloaded,
    StepFailed,
)
from quire.types.request import Constraint, ConstraintKind, FinishReason, GenerateRequest, SamplingParams
from quire.types.step import PartResult, StepResult
from tests.scheduler.simulator import counts, expected_output, make, request, sampled, suggest

pytestmark = pytest.mark.pure


ANY_JSON = Constraint(ConstraintKind.JSON)


def test_prompts_and_streams_share_a_step():
    sim = make()
    sim.submit(request("a", range(10)))
    sim.step()
    sim.submit(request("b", range(100, 110)))
    sim.step()
    assert counts(sim.plans[1]) == {"a": 1, "b": 10}


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    sim = make(max_step_tokens=16)
    sim.run([(0.0, request("a", range(40)))])
    assert [counts(plan)["a"] for plan in sim.plans[:3]] == [16, 16, 8]
    assert [plan.parts[0].num_logits for plan in sim.plans[:3]] == [0, 0, 1]


@pytest.mark.parametrize("lengths, num_tokens", [((40, 40, 40), 120), ((40, 40, 50), 99), ((90,), 90), ((124,), 99)])
def test_a_short_remainder_of_a_prompt_is_added_to_the_step(lengths, num_tokens):
    # 10 ms and 0.1 ms a token: with a stream, a gap of 20 ms allows 100 tokens, and a quarter more to finish prompts.
    sim = make(num_blocks=256, max_step_tokens=512, max_context=512, stream_gap=0.02005, min_prompt_tokens=8)
    sim.submit(request("stream", range(10), 100))
    for _ in range(8):
        sim.step()
    for number, length in enumerate(lengths):
        sim.submit(request(str(number), range(1000 * (number + 1), 1000 * (number + 1) + length)))
    sim.step()
    found = counts(sim.plans[-1])
    assert found.pop("stream") == 1 and sum(found.values()) == num_tokens


def test_prompts_for_other_engines_are_finished_one_after_the_other_in_short_steps():
    # As above, a gap of 20 ms allows 100 tokens. Before the first step nothing is measured, so it has no such limit.
    settings = {"max_step_tokens": 512, "max_context": 512, "stream_gap": 0.02005, "min_prompt_tokens": 8}
    plans = []
    for more in ({}, {"hands_over": True, "max_partial_prompts": 1}):
        sim = make(num_blocks=256, **settings, **more)
        sim.run([(0.0, request("first", range(100), 1))])
        num_before = len(sim.plans)
        sim.run([(1.0, request(str(n), range(1000 * n, 1000 * n + 150), 1)) for n in (1, 2, 3)])
        plans.append([counts(plan) for plan in sim.plans[num_before:]])
    assert plans[0] == [{"1": 150, "2": 150, "3": 150}]
    assert plans[1] == [{"1": 100}, {"1": 50, "2": 50}, {"2": 100}, {"3": 100}, {"3": 50}]


def test_the_output_does_not_depend_on_the_batch_on_chunks_or_on_hits():
    for settings in ({}, {"max_step_tokens": 8}, {"max_rows": 2, "max_step_tokens": 8}):
        sim = make(**settings)
        sim.run([(0.0, request(str(n), tuple(range(n % 3, 30 + n)), max_tokens=20)) for n in range(12)])
        for n in range(12):
            assert sim.records[str(n), 0].tokens == expected_output(tuple(range(n % 3, 30 + n)), 20)


def test_samples_of_one_request_share_its_prompt_and_differ_in_output():
    sim = make()
    prompt = tuple(range(10))
    sim.run([(0.0, request("a", prompt, n=3))])
    assert sim.device.num_computed == 10 + 2 + 3 * 7  # each further sample computes the prompt's last token again
    for sample in range(3):
        assert sim.records["a", sample].tokens == expected_output(prompt, 8, sample)


def test_the_more_important_request_is_admitted_first():
    sim = make(max_rows=1)
    sim.run([(0.0, request("low", range(8), priority=9)), (0.0, request("high", range(50, 58), priority=1))])
    assert sim.records["high", 0].times[-1] < sim.records["low", 0].times[0]


def test_a_more_urgent_request_takes_the_row_of_the_least_important():
    sim = make(max_rows=2)
    sim.submit(request("low", range(8), max_tokens=30, priority=9))
    sim.submit(request("middle", range(20, 28), max_tokens=30, priority=5))
    sim.step()
    sim.submit(request("high", range(50, 58), priority=1))
    sim.step()
    assert set(counts(sim.plans[-1])) == {"middle", "high"}
    sim.run()
    assert sim.records["low", 0].tokens == expected_output(tuple(range(8)), 30)


def test_preempts_the_least_important_request_when_blocks_run_out():
    sim = make(num_blocks=6, watermark=0.0)
    sim.submit(request("low", range(8), max_tokens=16, priority=9))
    sim.submit(request("high", range(50, 58), max_tokens=16, priority=1))
    sim.step()
    while len(counts(sim.plans[-1])) == 2:
        sim.step()
    assert set(counts(sim.plans[-1])) == {"high"}
    sim.run()
    assert sim.scheduler.stats().num_preemptions >= 1
    assert sim.records["low", 0].tokens == expected_output(tuple(range(8)), 16)


def test_a_preempted_request_resumes_from_the_cache():
    sim = make(max_rows=1)
    sim.submit(request("low", range(40), max_tokens=10, priority=9))
    for _ in range(4):
        sim.step()
    sim.submit(request("high", range(100, 104), max_tokens=2, priority=1))
    sim.run()
    # Both prompts, and both outputs without their last tokens: nothing of `low` was computed twice.
    assert sim.device.num_computed == 40 + 9 + 4 + 1
    assert sim.records["low", 0].tokens == expected_output(tuple(range(40)), 10)


def test_with_pressure_queue_no_request_is_preempted():
    sim = make(num_blocks=12, pressure="queue", watermark=0.0)
    sim.run([(0.0, request(str(n), range(n * 10, n * 10 + 8), max_tokens=16)) for n in range(6)])
    assert sim.scheduler.stats().num_preemptions == 0
    assert max(len(plan.parts) for plan in sim.plans) == 2  # 6 blocks each


def test_with_pressure_evict_more_run_at_once_at_the_price_of_preemptions():
    sim = make(num_blocks=12, pressure="evict", watermark=0.0)
    sim.run([(0.0, request(str(n), range(n * 10, n * 10 + 8), max_tokens=16)) for n in range(6)])
    assert max(len(plan.parts) for plan in sim.plans) > 2
    assert sim.scheduler.stats().num_preemptions > 0


def test_with_pressure_reject_a_request_that_would_wait_too_long_is_refused_with_a_retry_time():
    sim = make(pressure="reject", max_wait=0.5, max_rows=1)
    sim.run([(0.0, request("a", range(50), max_tokens=50))])  # measures the rate
    for n in range(100):
        if not sim.submit(request(str(n), range(50), max_tokens=50)):
            break
    error = sim.refused[str(n)]
    assert isinstance(error, Overloaded) and error.status == 503 and error.retry_after >= 1.0
    promised = sim.scheduler.stats().promised_wait
    assert promised > 0.5
    begin = sim.now
    sim.run()
    assert abs(sim.records[str(n - 1), 0].times[0] - begin - promised) < promised  # the right order of magnitude


def test_a_full_queue_refuses():
    sim = make(max_waiting=2)
    assert sim.submit(request("a", range(4))) and sim.submit(request("b", range(4)))
    assert not sim.submit(request("c", range(4)))
    assert isinstance(sim.refused["c"], Overloaded)
    sim.run()


def test_an_over_long_prompt_fails_with_both_numbers():
    sim = make(max_context=16)
    sim.submit(request("a", range(20)))
    error = sim.refused["a"]
    assert isinstance(error, ContextTooLong) and error.status == 400
    assert "20" in error.public and "16" in error.public


def test_a_prompt_larger_than_the_cache_fails_with_both_numbers():
    sim = make(num_blocks=4, max_context=256)
    sim.submit(request("a", range(20)))
    assert isinstance(sim.refused["a"], CacheTooSmall)
    assert "21" in sim.refused["a"].public and "16" in sim.refused["a"].public


def test_the_context_limit_ends_a_request_with_length():
    sim = make(max_context=16)
    sim.run([(0.0, GenerateRequest("a", tuple(range(10))))])
    assert sim.records["a", 0].finish is FinishReason.LENGTH and len(sim.records["a", 0].tokens) == 6


def test_a_stop_token_ends_a_request_and_is_part_of_its_output():
    prompt = tuple(range(10))
    output = expected_output(prompt, 8)
    stop = output[3]
    sim = make()
    sim.run([(0.0, GenerateRequest("a", prompt, SamplingParams(max_tokens=8, stop_token_ids=(stop,))))])
    assert sim.records["a", 0].tokens == output[: output.index(stop) + 1]
    assert sim.records["a", 0].finish is FinishReason.STOP


def test_end_of_text_is_ignored_with_ignore_eos_and_before_min_tokens():
    prompt = tuple(range(10))
    output = expected_output(prompt, 8)
    eos = (output[1], output[5])
    sim = make()
    ignoring = SamplingParams(max_tokens=8, ignore_eos=True)
    with_minimum = SamplingParams(max_tokens=8, min_tokens=4)
    sim.run(
        [(0.0, GenerateRequest("a", prompt, ignoring, eos)), (0.0, GenerateRequest("b", prompt, with_minimum, eos))]
    )
    assert sim.records["a", 0].tokens == output
    assert sim.records["b", 0].tokens == output[:6]


def test_a_deadline_ends_a_request_waiting_or_running():
    sim = make(max_rows=1)
    sim.submit(request("running", range(8), max_tokens=200, deadline=0.2))
    sim.submit(request("waiting", range(8), max_tokens=200, deadline=0.1))
    sim.run()
    for name in ("running", "waiting"):
        assert isinstance(sim.records[name, 0].error, DeadlineExceeded) and sim.records[name, 0].num_endings == 1
    assert 0 < len(sim.records["running", 0].tokens) < 200
    assert sim.cache.stats().num_held == 0


def test_cancel_frees_what_only_that_request_held():
    sim = make()
    sim.submit(request("a", range(20), n=2))
    sim.submit(request("b", range(50, 70)))
    for _ in range(3):
        sim.step()
    assert sim.scheduler.cancel("a", sim.now) and not sim.scheduler.cancel("a", sim.now)
    sim.scheduler.check()
    assert sim.cache.stats().num_held == 6  # b's
    sim.run()
    assert sim.records["a", 0].finish is sim.records["a", 1].finish is FinishReason.CANCELLED
    assert sim.cache.stats().num_held == 0


def test_an_id_cannot_be_used_twice_at_once_but_can_be_reused_later():
    sim = make()
    assert sim.submit(request("a", range(8)))
    assert not sim.submit(request("a", range(8))) and isinstance(sim.refused["a"], DuplicateRequest)
    sim.run()
    assert sim.submit(request("a", range(8)))
    sim.run()


def test_an_error_of_one_part_fails_only_its_request():
    sim = make()
    sim.device.refuse = lambda part: StepFailed("broken") if part.request_id == "a" and part.start >= 12 else None
    sim.run([(0.0, request("a", range(10))), (0.0, request("b", range(10)))])
    assert isinstance(sim.records["a", 0].error, StepFailed)
    assert sim.records["b", 0].tokens == expected_output(tuple(range(10)), 8)


def test_the_earlier_turn_of_a_session_is_held_for_the_next():
    sim = make(num_blocks=16)
    sim.run([(0.0, request("a", range(20), max_tokens=4, session="s"))])
    assert sim.cache.stats().num_held == 6
    for n in range(1, 6):
        sim.run([(0.0, request(str(n), range(100 * n, 100 * n + 30)))])
    context = (*range(20), *expected_output(tuple(range(20)), 4))
    sim.run([(0.0, request("b", (*context, 7, 7), session="s"))])
    assert sim.records["b", 0].num_hit == 23


# ── several tokens at once ──


def test_forced_tokens_are_output_at_once_and_computed_together():
    sim = make()
    sim.submit(request("a", range(10), max_tokens=8, constraint=ANY_JSON))
    sim.step()
    sim.scheduler.force("a", 0, (1, 2, 3), sim.now)
    sim.run()
    prompt, first = tuple(range(10)), expected_output(tuple(range(10)), 1)
    assert counts(sim.plans[1]) == {"a": 4}
    assert sim.records["a", 0].tokens == [*first, 1, 2, 3, *expected_output((*prompt, *first, 1, 2, 3), 4)]


def test_tokens_can_be_forced_before_the_prompt_is_computed():
    sim = make()
    sim.submit(request("a", range(10), max_tokens=8, constraint=ANY_JSON))
    sim.scheduler.force("a", 0, (1, 2, 3), sim.now)
    sim.run()
    prompt = tuple(range(10))
    assert counts(sim.plans[0]) == {"a": 13}
    assert sim.records["a", 0].tokens == [1, 2, 3, *expected_output((*prompt, 1, 2, 3), 5)]


def test_forced_tokens_found_in_the_cache_do_not_count_as_prompt_hits():
    sim = make()
    for name in ("a", "b"):
        sim.submit(request(name, range(8), max_tokens=8, constraint=ANY_JSON))
        sim.scheduler.force(name, 0, (1, 2, 3, 4), sim.now)
        sim.run()
    assert counts(sim.plans[-4]) == {"b": 1} and sim.records["b", 0].num_hit == 8  # it computed one of twelve


def test_forced_tokens_end_a_request_at_its_limit_and_are_counted_up_to_it():
    sim = make()
    sim.submit(request("a", range(10), max_tokens=2, constraint=ANY_JSON))
    sim.scheduler.force("a", 0, (1, 2, 3), sim.now)
    (outcome,) = sim.scheduler.drain()
    assert (outcome.tokens, outcome.finish, outcome.num_forced) == ((1, 2), FinishReason.LENGTH, 2)
    assert not sim.scheduler.plan(sim.now).parts and sim.scheduler.is_idle


def test_drafts_are_accepted_up_to_the_first_wrong_one():
    prompt = tuple(range(10))
    output = expected_output(prompt, 12)
    sim = make()
    sim.submit(request("a", prompt, max_tokens=12))
    sim.step()
    suggest(sim.scheduler, "a", 0, (*output[1:4], 777, 778))
    sim.step()
    assert counts(sim.plans[-1]) == {"a": 6} and sim.plans[-1].parts[0].num_logits == 6
    assert sim.records["a", 0].tokens == output[:5]
    sim.run()
    assert sim.records["a", 0].tokens == output


def test_drafts_never_exceed_the_token_limit():
    prompt = tuple(range(10))
    output = expected_output(prompt, 3)
    sim = make()
    sim.submit(request("a", prompt, max_tokens=3))
    sim.step()
    suggest(sim.scheduler, "a", 0, (*output[1:], 5, 6, 7))
    sim.run()
    assert sim.records["a", 0].tokens == output


def test_tokens_cannot_be_forced_on_a_request_whose_step_is_in_flight():
    sim = make(depth=2)
    sim.submit(request("a", range(10)))
    sim.step()
    with pytest.raises(InvalidRequest):
        sim.scheduler.force("a", 0, (1,), sim.now)
    sim.run()


# ── one step ahead ──


def test_planning_one_step_ahead_gives_the_same_output():
    for settings in ({}, {"max_rows": 2, "max_step_tokens": 8}, {"num_blocks": 24}):
        sim = make(depth=2, **settings)
        sim.run([(0.0, request(str(n), tuple(range(n % 3, 30 + n)), max_tokens=12)) for n in range(10)])
        for n in range(10):
            assert sim.records[str(n), 0].tokens == expected_output(tuple(range(n % 3, 30 + n)), 12)


def test_the_result_in_flight_of_a_finished_request_is_ignored():
    prompt = tuple(range(10))
    stop = expected_output(prompt, 3)[2]
    sim = make(depth=2)
    sim.submit(GenerateRequest("a", prompt, SamplingParams(max_tokens=20, stop_token_ids=(stop,))))
    sim.run()
    assert sim.records["a", 0].finish is FinishReason.STOP and sim.records["a", 0].tokens[-1] == stop
    assert sum(len(plan.parts) for plan in sim.plans) == 4  # one more than was needed
    assert sim.cache.stats().num_held == 0


def test_a_constrained_request_is_not_planned_ahead():
    sim = make()
    sim.submit(request("a", range(10), constraint=ANY_JSON))
    sim.submit(request("b", range(50, 60)))
    assert set(counts(sim.scheduler.plan(0.0))) == {"a", "b"}
    assert set(counts(sim.scheduler.plan(0.0))) == {"b"}


def test_a_step_that_yields_no_token_voids_the_step_planned_after_it():
    scheduler = Scheduler(KVCache(16, 4), SchedulerConfig(max_rows=2, max_step_tokens=16, max_context=64))
    scheduler.add(request("a", range(5), max_tokens=3), 0.0)
    first = scheduler.plan(0.0)
    ahead = scheduler.plan(0.0)
    assert ahead.parts[0].tokens is None and ahead.parts[0].start == 5
    scheduler.commit(StepResult(first.number, (PartResult(()),)), 0.1)
    scheduler.check()
    again = scheduler.plan(0.1)
    assert again.parts[0].start == 4 and again.parts[0].tokens == (4,)
    scheduler.commit(StepResult(ahead.number, (PartResult((99,)),)), 0.2)  # its input token was never sampled
    scheduler.check()
    assert scheduler.drain() == []
    scheduler.commit(StepResult(again.number, (PartResult((7,)),)), 0.3)
    assert [outcome.tokens for outcome in scheduler.drain()] == [(7,)]
    scheduler.check()


def test_a_token_that_arrives_after_its_request_was_preempted_is_kept():
    sim = make(depth=2, max_rows=1)
    sim.submit(request("low", range(12), max_tokens=10, priority=9))
    for _ in range(3):
        sim.step()
    sim.submit(request("high", range(100, 110), max_tokens=4, priority=0))
    sim.run()
    assert sim.records["low", 0].tokens == expected_output(tuple(range(12)), 10)
    assert sim.scheduler.stats().num_preemptions == 1


# ── groups ──


def test_rows_that_share_blocks_are_a_group_in_the_plan():
    sim = make()
    shared = tuple(range(16))
    sim.submit(request("a", (*shared, 1)))
    sim.step()
    sim.submit(request("b", (*shared, 2)))
    sim.submit(request("c", range(100, 110)))
    sim.step()
    assert [(len(group.rows), group.num_blocks) for group in sim.plans[-1].groups] == [(2, 4)]
    sim.run()


def test_groups_save_the_most_reads_when_some_rows_share_more_than_others():
    sim = make()
    short, long = tuple(range(4)), tuple(range(24))
    sim.submit(request("leader", (*long, 1), max_tokens=30))
    sim.step()
    for n in range(2):
        sim.submit(request(f"long{n}", (*long, 2 + n), max_tokens=30))
    sim.submit(request("short", (*short, 90, 91), max_tokens=30))
    sim.step()
    assert [(len(group.rows), group.num_blocks) for group in sim.plans[-1].groups] == [(3, 6)]
    sim.scheduler.cancel("long0", sim.now)
    sim.step()
    assert [(len(group.rows), group.num_blocks) for group in sim.plans[-1].groups] == [(2, 6)]
    sim.run()


def test_the_sampled_token_depends_on_the_text_alone():
    assert sampled(1, 0) == sampled(1, 0) and sampled(1, 0) != sampled(1, 1)
