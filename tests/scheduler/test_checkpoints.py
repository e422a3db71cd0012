"""Models with states: every request resumes at the deepest checkpoint, and what is shared is computed once."""

from __future__ import annotations

import random

import pytest

from quire.cache.kv_cache import Lease
from quire.config import SchedulerConfig
from quire.scheduler.step_builder import StepBuilder
from quire.types.errors import StepFailed
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from quire.types.step import Part, PartResult
from tests.scheduler.simulator import Groups, Simulator, expected_output, request, suggest

pytestmark = pytest.mark.pure

CONFIG = SchedulerConfig(max_rows=64, max_step_tokens=512, max_context=16_384)
PREFIX, SUFFIX = 5000, 30
STATES = Groups(num_states=200)
COARSE = Groups(num_states=200, grain=64)
WINDOW = Groups(((128, 4000),), num_states=200)


def text(chance: random.Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(chance.randrange(1000) for _ in range(num_tokens))


def small(num_states: int = 40, depth: int = 1, **settings: object) -> Simulator:
    config = SchedulerConfig(**{"max_rows": 8, "max_step_tokens": 64, "max_context": 256, **settings})  # type: ignore[arg-type]
    simulator = Simulator(config, 200, block_tokens=4, depth=depth, groups=Groups(num_states=num_states))
    simulator.checks = True
    return simulator


def prompts_computed(simulator: Simulator) -> dict[str, int]:
    """Return how many tokens of its prompt each request has computed."""
    computed: dict[str, int] = {}
    for plan in simulator.plans:
        for part in plan.parts:
            num_prompt = PREFIX + SUFFIX
            inside = max(0, min(part.start + part.num_tokens, num_prompt) - part.start)
            computed[part.request_id] = computed.get(part.request_id, 0) + inside
    return computed


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "groups, replayed", [(STATES, 0), (COARSE, 63), (WINDOW, 0)], ids=["any", "grain 64", "window"]
)
def test_a_shared_prefix_is_computed_once_from_the_third_request_on(groups: Groups, replayed: int, depth: int) -> None:
    chance = random.Random(1)
    shared = text(chance, PREFIX)
    simulator = Simulator(CONFIG, 4000, depth=depth, groups=groups)
    for index in range(40):
        simulator.run([(simulator.now, request(str(index), shared + text(chance, SUFFIX), 20))])
    computed = prompts_computed(simulator)
    assert computed["0"] == PREFIX + SUFFIX
    assert computed["1"] <= PREFIX - 4096 + SUFFIX, "it resumes at a checkpoint inside the prefix"
    assert all(computed[str(index)] <= SUFFIX + replayed for index in range(2, 40))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "groups, replayed", [(STATES, 0), (COARSE, 63), (WINDOW, 0)], ids=["any", "grain 64", "window"]
)
def test_a_shared_prefix_is_computed_once_by_requests_that_arrive_together(
    groups: Groups, replayed: int, depth: int
) -> None:
    chance = random.Random(2)
    shared = text(chance, PREFIX)
    simulator = Simulator(CONFIG, 8000, depth=depth, groups=groups)
    requests = [request(str(index), shared + text(chance, SUFFIX), 20) for index in range(40)]
    simulator.run([(0.0, each) for each in requests])
    computed = prompts_computed(simulator)
    assert computed["0"] == PREFIX + SUFFIX
    assert all(computed[str(index)] <= SUFFIX + replayed for index in range(1, 40))
    for each in requests:
        assert simulator.records[each.id, 0].tokens == expected_output(each.prompt, 20)


@pytest.mark.parametrize("stops", [(), tuple(range(0, 1000, 9))], ids=["length", "stop"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("groups", [STATES, WINDOW], ids=["states", "window"])
def test_a_conversation_computes_each_token_once(groups: Groups, depth: int, stops: tuple[int, ...]) -> None:
    chance = random.Random(3)
    simulator = Simulator(CONFIG, 4000, depth=depth, groups=groups)
    history: tuple[int, ...] = ()
    for turn in range(20):
        history += text(chance, chance.randint(5, 120))
        sampling = SamplingParams(max_tokens=40, stop_token_ids=stops)
        simulator.run([(simulator.now, GenerateRequest(str(turn), history, sampling))])
        history += tuple(simulator.records[str(turn), 0].tokens)
    # The last token of the last answer is never computed, unless the step after it was planned before it was known.
    assert simulator.device.num_computed in (len(history) - 1, len(history))


@pytest.mark.parametrize("depth", [1, 2])
def test_the_samples_of_a_request_compute_its_prompt_once(depth: int) -> None:
    simulator = small(depth=depth)
    prompt = tuple(range(50))
    simulator.run([(0.0, request("a", prompt, 12, n=4))])
    for sample in range(4):
        assert simulator.records["a", sample].tokens == expected_output(prompt, 12, sample)
    assert simulator.device.num_computed == 50 + 3 + 4 * 11  # and the prompt's last token again, for its logits


def test_the_samples_of_a_request_start_when_the_first_one_ends_early() -> None:
    simulator = small()
    simulator.run([(0.0, request("a", range(50), 1, n=3))])
    assert simulator.device.num_computed == 50 + 2


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_tokens", [3, 16, 50])
def test_the_samples_of_a_request_start_right_after_the_step_of_its_prompt(num_tokens: int, depth: int) -> None:
    simulator, prompt = small(depth=depth), tuple(range(num_tokens))
    simulator.run([(0.0, request("a", prompt, 12, n=4))])
    num_parts = [len(plan.parts) for plan in simulator.plans]
    assert num_parts[: depth + 1] == [1] * depth + [4], "its state is known when the result of its step has arrived"
    assert simulator.device.num_computed == num_tokens + 3 + 4 * 11
    for sample in range(4):
        assert simulator.records["a", sample].tokens == expected_output(prompt, 12, sample)


@pytest.mark.parametrize("num_tokens, waits", [(4, False), (5, True), (23, True), (24, True), (123, True)])
def test_a_request_waits_for_a_checkpoint_that_is_worth_a_block_of_tokens(num_tokens: int, waits: bool) -> None:
    simulator = small(max_step_tokens=128)
    for name in "ab":
        simulator.submit(request(name, range(num_tokens), 12))
    simulator.run()
    assert simulator.device.num_computed == (num_tokens + 1 if waits else 2 * num_tokens) + 2 * 11
    assert (simulator.records["b", 0].num_hit == num_tokens - 1) is waits


@pytest.mark.parametrize("groups", [Groups(num_states=40), Groups(((6, 60),), num_states=40)], ids=["states", "window"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_tokens", [2, 3, 23, 24, 41])
def test_a_prompt_equal_to_that_of_a_running_request_is_found_up_to_its_last_token(
    num_tokens: int, depth: int, groups: Groups
) -> None:
    simulator = Simulator(CONFIG, 200, block_tokens=4, depth=depth, groups=groups)
    simulator.checks = True
    simulator.submit(request("a", range(num_tokens), 20))
    for _ in range(depth + 1):
        simulator.step()
    simulator.submit(request("equal", range(num_tokens), 9))
    simulator.submit(request("longer", (*range(num_tokens), 7, 8, 9), 9))
    simulator.run()
    for name in ("equal", "longer"):
        assert simulator.records[name, 0].num_hit == num_tokens - 1
    assert simulator.records["longer", 0].tokens == expected_output((*range(num_tokens), 7, 8, 9), 9)
    assert simulator.device.num_computed == num_tokens + 19 + 1 + 8 + 4 + 8


def test_a_request_waits_for_the_last_block_of_a_prompt_in_flight() -> None:
    simulator = small(max_step_tokens=32, depth=2)
    simulator.submit(request("a", range(62), 9))
    for _ in range(2):
        simulator.step()  # the first half is in the tree, without a checkpoint
    simulator.submit(request("b", range(62), 9))
    simulator.run()
    assert simulator.records["b", 0].num_hit == 61 and simulator.device.num_computed == 62 + 8 + 9


def test_no_request_waits_for_a_checkpoint_that_is_not_made() -> None:
    """With one state there are no checkpoints: each request computes its prompt, one after the other."""
    simulator = small(num_states=1)
    simulator.run([(0.0, request(str(index), (*range(40), 90 + index), 6)) for index in range(3)])
    assert all(record.finish is FinishReason.LENGTH for record in simulator.records.values())
    assert simulator.device.num_computed == 3 * (41 + 5)


def test_a_request_waits_for_a_checkpoint_no_longer_once_the_tree_was_cleared() -> None:
    simulator = small(max_step_tokens=16)
    simulator.submit(request("a", (*range(60), 1), 30))
    simulator.submit(request("b", (*range(60), 2), 4))
    simulator.step()
    assert not any(part.request_id == "b" for part in simulator.plans[0].parts)
    simulator.cache.clear(simulator.now)
    simulator.run()
    assert simulator.records["b", 0].times[-1] < simulator.records["a", 0].times[-1]


# ── going back ──


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_a_state_goes_back_to_before_rejected_drafts(right: int) -> None:
    simulator, prompt = small(), tuple(range(20))
    output = expected_output(prompt, 12)
    simulator.submit(request("a", prompt, 12))
    simulator.step()
    suggest(simulator.scheduler, "a", 0, (*output[1 : right + 1], *[999] * (3 - right)))
    simulator.step()
    simulator.run()
    assert simulator.records["a", 0].tokens == output
    parts = [part for plan in simulator.plans for part in plan.parts]
    assert parts[1].num_logits == 4 and parts[1].start == 20
    if right == 3:
        assert parts[2].start == 24 and parts[2].tokens is None
    else:
        assert parts[2].start == 20 and parts[2].tokens == (*output[: right + 2],)
    assert simulator.cache.stats().num_held == 0


def test_drafts_are_dropped_without_a_second_state() -> None:
    simulator = small(num_states=1)
    simulator.submit(request("a", range(20), 6))
    simulator.step()
    suggest(simulator.scheduler, "a", 0, (1, 2))
    simulator.run()
    assert all(part.num_logits == 1 for plan in simulator.plans for part in plan.parts)
    assert simulator.records["a", 0].tokens == expected_output(tuple(range(20)), 6)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_without_a_sampled_token_starts_again_at_a_checkpoint(depth: int) -> None:
    simulator, prompt = small(depth=depth), tuple(range(20))
    compute = simulator.device._compute

    def without_token(part: Part, tokens: tuple[int, ...]) -> PartResult:
        result = compute(part, tokens)
        return PartResult() if len(simulator.plans) == 3 else result

    simulator.device._compute = without_token  # type: ignore[method-assign]
    simulator.run([(0.0, request("a", prompt, 8))])
    assert simulator.records["a", 0].tokens == expected_output(prompt, 8)
    assert simulator.scheduler.stats().num_preemptions == 1
    again = next(part for plan in simulator.plans[3:] for part in plan.parts if part.tokens is not None)
    assert again.start == 19, "at the end of its prompt"


def test_forced_tokens_continue_the_live_state() -> None:
    simulator, prompt = small(), tuple(range(20))
    simulator.submit(request("a", prompt, 12))
    simulator.step()
    simulator.scheduler.force("a", 0, (7, 8, 9), simulator.now)
    simulator.run()
    assert simulator.records["a", 0].tokens[1:4] == [7, 8, 9] and len(simulator.records["a", 0].tokens) == 12
    assert simulator.plans[1].parts[0].num_tokens == 4 and not simulator.plans[1].states


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_part_leaves_no_state_behind(depth: int) -> None:
    simulator = small(depth=depth)
    prompt = tuple(range(20))
    simulator.device.refuse = lambda part: StepFailed("no") if len(simulator.plans) == 3 else None
    simulator.run([(0.0, request("a", prompt, 12))])
    assert isinstance(simulator.records["a", 0].error, StepFailed)
    simulator.run([(simulator.now, request("b", prompt + tuple(expected_output(prompt, 5)), 4))])
    assert simulator.records["b", 0].tokens == expected_output(prompt, 9)[5:]


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_has_ended_gives_its_state_to_the_tree_if_its_last_step_succeeds(fails: bool) -> None:
    simulator, prompt = small(depth=2), tuple(range(21))
    answer = expected_output(prompt, 3)
    sampling = SamplingParams(max_tokens=12, stop_token_ids=(answer[2],))
    simulator.device.refuse = lambda part: StepFailed("no") if fails and len(simulator.plans) == 4 else None
    simulator.run([(0.0, GenerateRequest("a", prompt, sampling))])
    assert simulator.records["a", 0].tokens == answer and len(simulator.plans) == 4, "a step was planned in vain"
    simulator.run([(simulator.now, request("b", (*prompt, *answer, 5), 4))])
    assert simulator.records["b", 0].tokens == expected_output((*prompt, *answer, 5), 4)
    assert simulator.records["b", 0].num_hit == (20 if fails else 24)


def test_a_state_that_no_part_has_written_is_not_given_to_the_tree() -> None:
    simulator, prompt = small(), tuple(range(20))
    simulator.run([(0.0, request("a", prompt, 3))])
    simulator.submit(request("b", prompt, 3))
    (state,) = simulator.scheduler._requests.samples("b")
    lease = simulator.scheduler._admission.lease(state, [state], simulator.now)
    assert isinstance(lease, Lease) and lease.num_hit == 19
    simulator.scheduler._admit(state, lease, StepBuilder(9, CONFIG, simulator.cache, 0.0), simulator.now)
    assert state.has_unwritten_state
    state.take_state_source()
    assert not state.has_unwritten_state


def test_a_preempted_request_resumes_where_it_was() -> None:
    simulator, prompt = small(max_rows=1), tuple(range(20))
    simulator.submit(request("low", prompt, 12, priority=5))
    for _ in range(5):
        simulator.step()
    simulator.submit(request("high", range(100, 120), 3, priority=0))
    simulator.run()
    assert simulator.records["low", 0].tokens == expected_output(prompt, 12)
    assert simulator.device.num_computed == 20 + 11 + 20 + 2


def test_a_scored_prompt_is_computed_from_its_start_with_a_fresh_state() -> None:
    simulator, prompt = small(max_scored_tokens=10), tuple(range(20))
    simulator.run([(0.0, request("a", prompt, 5))])
    simulator.plans.clear()
    sampling = SamplingParams(max_tokens=5, prompt_logprobs=0)
    simulator.run([(simulator.now, GenerateRequest("b", prompt, sampling))])
    assert simulator.plans[0].states[0].source == -1 and simulator.plans[0].parts[0].start == 0
    assert simulator.records["b", 0].tokens == simulator.records["a", 0].tokens


# ── under pressure ──


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "groups", [Groups(num_states=30), Groups(((64, 400),), num_states=30)], ids=["states", "window"]
)
def test_no_wrong_state_is_used_and_nothing_leaks_under_eviction_pressure(groups: Groups, depth: int) -> None:
    chance = random.Random(4)
    prefixes = [text(chance, chance.randint(50, 300)) for _ in range(12)]
    requests = {}
    for index in range(400):
        prompt = chance.choice(prefixes)[: chance.randint(1, 300)] + text(chance, chance.randint(1, 40))
        requests[str(index)] = request(str(index), prompt, chance.randint(1, 40), priority=chance.choice([0, 0, 5]))
    config = SchedulerConfig(max_rows=16, max_step_tokens=256, max_context=512)
    simulator = Simulator(config, 250, depth=depth, groups=groups)
    simulator.run([(chance.random() * 8, each) for each in requests.values()])
    for (name, _), record in simulator.records.items():
        assert record.tokens == expected_output(requests[name].prompt, requests[name].sampling.max_tokens or 0)
    assert simulator.cache.stats().num_held == 0
    prompts = sum(len(each.prompt) for each in requests.values())
    outputs = sum(len(record.tokens) for record in simulator.records.values())
    assert simulator.device.num_computed - outputs < 0.9 * prompts, "checkpoints were used"


def test_the_simulator_notices_a_corrupted_state() -> None:
    simulator, prompt = small(), tuple(range(20))
    simulator.run([(0.0, request("a", prompt, 5))])
    states = simulator.device.states
    states.update({slot: (position, mark + 1) for slot, (position, mark) in states.items()})
    with pytest.raises(AssertionError, match="b reads a wrong state"):
        simulator.run([(simulator.now, request("b", prompt, 5))])
