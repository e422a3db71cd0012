"""With any requests, in any order and amount of memory, each ends once, with the output that it has when run alone.

The simulator's fake device checks every slot that is read, and `check` runs after every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.config import SchedulerConfig
from quire.types.errors import DeadlineExceeded, StepFailed
from quire.types.request import (
    CacheKey,
    Constraint,
    ConstraintKind,
    FinishReason,
    GenerateRequest,
    Pin,
    SamplingParams,
)
from quire.types.step import Part
from tests.scheduler.simulator import NO_GROUPS, Groups, Simulator, expected_output, fingerprint, sampled, suggest

pytestmark = pytest.mark.pure

MAX_CONTEXT = 60
ANY_JSON = Constraint(ConstraintKind.JSON)

prompts = st.lists(st.integers(1, 2), min_size=1, max_size=30).map(tuple)
arrivals = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "max_tokens": st.integers(1, 12),
        "n": st.sampled_from([1, 1, 1, 3]),
        "stops": st.sampled_from([(), (), tuple(range(0, 1000, 7))]),
        "priority": st.sampled_from([0, 0, 1, 2]),
        "key": st.sampled_from("ab"),
        "salt": st.sampled_from(["", "", "x"]),
        "session": st.sampled_from([None, None, "s"]),
        "pin": st.sampled_from([(), (), (Pin(0, 8, 5, 0.2),)]),
        "deadline": st.sampled_from([None, None, None, 0.05]),
        "constrained": st.booleans(),
        "arrives": st.floats(0, 0.3),
        "cancelled_at": st.sampled_from([None, None, None, 3, 6]),  # step
        "fails_at": st.sampled_from([None, None, None, None, 2, 4]),  # plan
        "drafts": st.sampled_from([None, None, "right", "wrong"]),
        "resumed": st.sampled_from([None, None, 0, 1, 5]),  # output tokens of the first sample; fewer of the others
    }
)
MOST_STEP_TOKENS = 40
settings_of_scheduler = st.fixed_dictionaries(
    {
        "max_rows": st.integers(1, 6),
        "max_step_tokens": st.integers(6, MOST_STEP_TOKENS),
        "max_partial_prompts": st.integers(1, 4),
        "pressure": st.sampled_from(["evict", "queue", "reject"]),
        "watermark": st.sampled_from([0.0, 0.1]),
        "prefix_window": st.integers(1, 4),
        "stream_gap": st.sampled_from([0.0, 0.2]),
        "min_prompt_tokens": st.sampled_from([1, 8]),
    }
)
drawn = (
    st.lists(arrivals, min_size=1, max_size=10),
    settings_of_scheduler,
    st.integers(15, 40),  # blocks; 15 hold one request of the longest context
    st.sampled_from([1, 2]),
)
examples = given(*drawn)
window_groups = st.sampled_from([1, 3, 6, 9, 20]).flatmap(  # as many blocks as one request needs, or more
    lambda window: st.tuples(st.just(window), st.integers(-(-(window + MOST_STEP_TOKENS) // 4) + 2, 32))
)
states = st.fixed_dictionaries(
    {"num_states": st.integers(1, 12), "every": st.sampled_from([7, 16, 4096]), "grain": st.sampled_from([1, 1, 4, 6])}
)
groups = st.one_of(  # beside the group of all tokens
    st.builds(lambda windows: Groups(tuple(windows)), st.lists(window_groups, min_size=1, max_size=2)),
    st.builds(lambda more: Groups(**more), states),
    st.builds(lambda window, more: Groups((window,), **more), window_groups, states),
)


def output_alone(request: GenerateRequest, sample: int) -> tuple[list[int], FinishReason]:
    limit = min(request.sampling.max_tokens or MAX_CONTEXT, MAX_CONTEXT - len(request.prompt))
    output = expected_output(request.prompt, limit, sample)
    for index, token in enumerate(output):
        if token in request.sampling.stop_token_ids:
            return output[: index + 1], FinishReason.STOP
    return output, FinishReason.LENGTH


def to_request(index: int, each: dict) -> GenerateRequest:
    request = new_request(index, each)
    if each["resumed"] is None:
        return request
    outputs = [output_alone(request, sample)[0] for sample in range(each["n"])]
    known = [
        tuple(output[: min(max(0, each["resumed"] - sample), len(output) - 1)]) for sample, output in enumerate(outputs)
    ]
    return replace(request, resumed=tuple(None if sample == 1 else output for sample, output in enumerate(known)))


def new_request(index: int, each: dict) -> GenerateRequest:
    return GenerateRequest(
        id=str(index),
        prompt=each["prompt"],
        sampling=SamplingParams(max_tokens=each["max_tokens"], n=each["n"], stop_token_ids=each["stops"]),
        priority=each["priority"],
        key=each["key"],
        cache=CacheKey(salt=each["salt"]),
        session=each["session"],
        pins=each["pin"],
        deadline=each["deadline"] and each["arrives"] + each["deadline"],
        constraint=ANY_JSON if each["constrained"] else None,
    )


def draft(simulator: Simulator, arriving: list[dict]) -> None:
    """Suggest correct or wrong drafts to the requests that can take them."""
    for (name, sample), record in simulator.records.items():
        kind = arriving[int(name)]["drafts"]
        state = next((s for s in simulator.scheduler._requests.samples(name) if s.sample == sample), None)
        if kind is None or state is None or state.num_in_flight or not record.tokens:
            continue
        mark = 0
        for token in state.tokens:
            mark = fingerprint(mark, token)
        right = sampled(mark, sample)
        suggest(simulator.scheduler, name, sample, (right, 5) if kind == "right" else (right + 1,))


def check_example(
    arriving: list[dict],
    config: dict,
    num_blocks: int,
    depth: int,
    sizes: Sequence[int] = (),
    groups: Groups = NO_GROUPS,
) -> None:
    """`sizes`: how many blocks may be in use after each step, repeated cyclically."""
    config = SchedulerConfig(**config, max_context=MAX_CONTEXT, max_wait=1000.0)
    simulator = Simulator(config, num_blocks, block_tokens=4, depth=depth, groups=groups)
    simulator.checks = True
    requests = {str(index): to_request(index, each) for index, each in enumerate(arriving)}
    steps = 0

    def on_step(sim: Simulator) -> None:
        nonlocal steps
        steps += 1
        for index, each in enumerate(arriving):
            if each["cancelled_at"] == steps:
                sim.scheduler.cancel(str(index), sim.now)
        if sizes:
            sim.cache.resizing.start(max(sizes[steps % len(sizes)], sim.scheduler.fewest_blocks), sim.now)
        draft(sim, arriving)

    def refuse(part: Part) -> StepFailed | None:
        fails_at = arriving[int(part.request_id.split("#")[0])]["fails_at"]
        return StepFailed("Failed as planned.") if fails_at == len(simulator.plans) else None

    simulator.on_step = on_step
    simulator.device.refuse = refuse
    simulator.run([(each["arrives"], requests[str(index)]) for index, each in enumerate(arriving)], max_steps=5000)
    simulator._take(simulator.scheduler.drain())
    assert not simulator.refused
    for (name, sample), record in simulator.records.items():
        output, finish = output_alone(requests[name], sample)
        output = output[len(requests[name].resumed_output(sample)) :]
        assert record.num_endings == 1, "every request ends, once"
        assert record.tokens == output[: len(record.tokens)]
        if record.finish is FinishReason.CANCELLED:
            assert arriving[int(name)]["cancelled_at"] is not None
        elif isinstance(record.error, StepFailed):
            assert arriving[int(name)]["fails_at"] is not None
        elif record.error is not None:
            assert isinstance(record.error, DeadlineExceeded) and requests[name].deadline is not None
        else:
            assert (record.tokens, record.finish) == (output, finish)
    stats = simulator.cache.stats()
    held_by_sessions = len(set(simulator.cache.sessions.held_blocks()))
    assert stats.num_held == held_by_sessions, "nothing leaks"
    assert stats.num_blocks - stats.num_held == stats.num_free + stats.num_cached, "the surplus is retired"


@pytest.mark.timeout(600)
@settings(max_examples=600, deadline=None)
@examples
def test_every_request_ends_with_the_output_it_has_alone(arriving, config, num_blocks, depth):
    check_example(arriving, config, num_blocks, depth)


@pytest.mark.timeout(600)
@settings(max_examples=300, deadline=None)
@given(*drawn, st.lists(st.integers(15, 40), min_size=1, max_size=12))
def test_every_request_ends_with_the_output_it_has_alone_while_the_cache_is_resized(
    arriving, config, num_blocks, depth, sizes
):
    check_example(arriving, config, num_blocks, depth, sizes)


@pytest.mark.timeout(600)
@settings(max_examples=200, deadline=None)
@given(*drawn, groups)
def test_every_request_ends_with_the_output_it_has_alone_with_windows_and_states(
    arriving, config, num_blocks, depth, groups
):
    check_example(arriving, config, num_blocks, depth, groups=groups)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=20_000, deadline=None)
@given(*drawn, groups, st.one_of(st.just([]), st.lists(st.integers(15, 40), min_size=1, max_size=12)))
def test_every_request_ends_with_the_output_it_has_alone_with_windows_and_states_at_length(
    arriving, config, num_blocks, depth, groups, sizes
):
    check_example(arriving, config, num_blocks, depth, sizes, groups)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=30_000, deadline=None)
@examples
def test_every_request_ends_with_the_output_it_has_alone_at_length(arriving, config, num_blocks, depth):
    check_example(arriving, config, num_blocks, depth)
