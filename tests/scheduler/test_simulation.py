"""Thousands of requests over simulated time: latency, fairness and memory at scale."""

from __future__ import annotations

import random
import statistics

import pytest

from quire.config import SchedulerConfig
from quire.types.request import FinishReason, GenerateRequest, SamplingParams
from tests.scheduler import lengths
from tests.scheduler.simulator import Simulator, expected_output

pytestmark = pytest.mark.pure

Arrival = tuple[float, GenerateRequest]


def text(chance: random.Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(chance.randrange(1000) for _ in range(num_tokens))


def make_request(
    name: str, prompt: tuple[int, ...], max_tokens: int, key: str = "", priority: int = 0
) -> GenerateRequest:
    return GenerateRequest(name, prompt, SamplingParams(max_tokens=max_tokens), key=key, priority=priority)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_blocks", [20_000, 700])
def test_three_thousand_mixed_requests_all_end_and_nothing_leaks(depth: int, num_blocks: int):
    chance = random.Random(1)
    prefixes = [text(chance, chance.randint(50, 400)) for _ in range(20)]
    requests = {}
    for index in range(3000):
        prefix = chance.choice(prefixes)[: chance.randint(1, 400)]
        prompt = prefix + text(chance, chance.randint(1, 50))
        requests[str(index)] = make_request(
            str(index), prompt, chance.randint(1, 60), chance.choice("abc"), chance.choice([0, 0, 5])
        )
    sim = Simulator(SchedulerConfig(max_rows=64, max_step_tokens=512, max_context=1024), num_blocks, depth=depth)
    sim.run([(chance.random() * 20, request) for request in requests.values()])
    assert not sim.refused and len(sim.records) == 3000
    for (name, sample), record in sim.records.items():
        request = requests[name]
        assert record.num_endings == 1 and record.finish is FinishReason.LENGTH
        assert record.tokens == expected_output(request.prompt, request.sampling.max_tokens or 0, sample)
    stats = sim.cache.stats()
    assert stats.num_held == 0 and stats.num_free + stats.num_cached == num_blocks
    prompts = sum(len(request.prompt) for request in requests.values())
    assert (
        sim.device.num_computed - sum(len(s.tokens) for s in sim.records.values()) < prompts / 2
    )  # thanks to prefix hits


def test_a_streams_gap_stays_bounded_while_a_prompt_of_100_000_tokens_is_computed():
    # 0.1 ms a token, and attention that makes the long prompt's last tokens ten times as expensive as its first.
    config = SchedulerConfig(max_rows=16, max_step_tokens=8192, max_context=200_000, stream_gap=0.2)
    sim = Simulator(config, num_blocks=10_000, each=1e-4, context=1e-8)
    chance = random.Random(2)
    streams = [(0.0, make_request(f"stream{n}", text(chance, 50), 2000)) for n in range(8)]
    sim.run([*streams, (1.0, make_request("long", text(chance, 100_000), 4))])
    began, ended = 1.0, sim.records["long", 0].times[0]
    assert ended - began > 10.0, "the prompt should take long"
    for n in range(8):
        times = [at for at in sim.records[f"stream{n}", 0].times if began <= at <= ended]
        assert len(times) > 20, "the streams should run meanwhile"
        assert sim.records[f"stream{n}", 0].widest_gap < 2 * config.stream_gap


def test_a_long_prompt_and_a_flood_of_short_ones_do_not_starve_each_other():
    config = SchedulerConfig(max_rows=64, max_step_tokens=1024, max_context=100_000)
    chance = random.Random(3)
    # The flood alone takes half of the machine: 20 prompts of 200 tokens a second, and it computes 9,000.
    flood = [(n / 20, make_request(f"short{n}", text(chance, 200), 10)) for n in range(1200)]
    sim = Simulator(config, num_blocks=20_000)
    sim.run([*flood, (1.0, make_request("long", text(chance, 30_000), 4))])
    long = sim.records["long", 0]
    assert long.first_token_after < 4 * 30_000 / 5_000, "no more than its share of the machine allows"
    meanwhile = [s.first_token_after for s in sim.records.values() if 1.0 < s.arrived < long.times[0]]
    assert len(meanwhile) > 100 and statistics.median(meanwhile) < 0.5


def test_two_keys_with_a_load_of_1_to_100_each_get_their_fair_share():
    config = SchedulerConfig(max_rows=8, max_step_tokens=256, max_context=2048, prefix_window=1)
    chance = random.Random(4)
    heavy = [(0.0, make_request(f"h{n}", text(chance, 100), 20, key="heavy")) for n in range(2000)]
    light = [(n * 0.5, make_request(f"l{n}", text(chance, 100), 20, key="light")) for n in range(20)]
    sim = Simulator(config, num_blocks=4000)
    sim.run([*heavy, *light])
    alone = Simulator(config, num_blocks=4000)
    alone.run(light)
    crowded = [sim.records[f"l{n}", 0].first_token_after for n in range(20)]
    quiet = [alone.records[f"l{n}", 0].first_token_after for n in range(20)]
    # It waits for a free row (a few steps), not for the 2,000 requests that arrived before it.
    assert statistics.median(crowded) < 10 * statistics.median(quiet)
    assert statistics.median(sim.records[f"h{n}", 0].first_token_after for n in range(2000)) > 20 * statistics.median(
        crowded
    )


def test_two_saturating_keys_share_by_their_weights():
    config = SchedulerConfig(max_rows=8, max_step_tokens=256, max_context=2048)
    for weight in (1.0, 3.0):
        chance = random.Random(5)
        sim = Simulator(config, num_blocks=4000)
        for n in range(800):  # both keys always have requests waiting
            for key, key_weight in (("a", 1.0), ("b", weight)):
                sampling = SamplingParams(max_tokens=20)
                sim.submit(GenerateRequest(f"{key}{n}", text(chance, 60), sampling, key=key, weight=key_weight))
        while sim.now < 30.0:
            sim.step()
        owners = {f"{key}{n}": key for key in "ab" for n in range(800)}
        served = sim.tokens_by_key(owners)
        assert served["b"] / served["a"] == pytest.approx(weight, rel=0.15)


def test_the_longest_cached_prefix_is_admitted_first_and_ageing_prevents_starvation():
    chance = random.Random(6)
    shared = text(chance, 512)
    config = SchedulerConfig(max_rows=1, max_step_tokens=1024, max_context=2048, ageing=100.0)
    sim = Simulator(config, num_blocks=4000)
    warm = (0.0, make_request("warm", shared, 2))
    stranger = (0.5, make_request("stranger", text(chance, 200), 4))
    friends = [(0.5 + n * 0.01, make_request(f"friend{n}", shared + text(chance, 4), 4)) for n in range(600)]
    sim.run([warm, stranger, *friends])
    first = sim.records["stranger", 0]
    before = [s for name, s in sim.records.items() if name[0] != "warm" and s.times[0] < first.times[0]]
    assert len(before) > 100, "requests with a cached prefix were admitted first"
    assert max(s.arrived for s in before) - first.arrived < 512 / 100 + 0.1, "if they arrived soon enough after it"
    assert len(before) < 600


def test_waste_inside_blocks_is_under_four_percent_on_recorded_lengths():
    chance = random.Random(7)
    config = SchedulerConfig(max_rows=64, max_step_tokens=4096, max_context=16_384)
    sim = Simulator(config, num_blocks=12_000, each=1e-5)
    arrivals = []
    for index in range(400):
        prompt = text(chance, lengths.draw(lengths.PROMPT, chance))
        arrivals.append((index / 20, make_request(str(index), prompt, lengths.draw(lengths.OUTPUT, chance))))
    used = held = 0

    def on_step(simulator: Simulator) -> None:
        nonlocal used, held
        for state in simulator.scheduler._running:
            assert state.lease is not None
            held += len(state.lease.blocks) * 16
            used += state.scheduled

    sim.on_step = on_step
    sim.run(arrivals)
    assert held > 10**6
    assert 1 - used / held < 0.04


def test_a_prefix_in_flight_is_computed_once_for_fifty_requests():
    chance = random.Random(8)
    shared = text(chance, 2000)
    sim = Simulator(SchedulerConfig(max_rows=64, max_step_tokens=512, max_context=4096), num_blocks=8000)
    sim.run([(0.0, make_request(str(n), shared + text(chance, 10), 8)) for n in range(50)])
    assert sim.device.num_computed < 2000 + 50 * (10 + 8 + 1)
