"""Simulated throughput against measurements, within 25 %; memory estimates; what-if questions; hardware."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import replace

import pytest

from quire.advisor.hardware import PRESETS, find_hardware, measure_this_machine
from quire.advisor.kv_memory import RequestCapacity, estimate_kv_memory
from quire.advisor.model_shape import PUBLISHED, checkpoint_shape, published_shape
from quire.advisor.roofline import Roofline
from quire.advisor.shared_prefixes import find_shared_prefixes
from quire.advisor.simulation import Simulation
from quire.advisor.what_if import ServingSetup, max_request_rate, run_what_ifs
from quire.advisor.workload import TraceCall, TraceWorkload
from quire.advisor.workload_summary import summarize_workload
from quire.config import SchedulerConfig, load
from quire.devices.facts import device_facts
from quire.types.errors import InvalidRequest
from quire.types.request import CacheKey
from tests.advisor import traces

pytestmark = pytest.mark.pure

TOLERANCE = 0.25
# 2 cores of an EPYC; measurements in docs/PERFORMANCE.md
EPYC = replace(PRESETS["laptop"], bandwidth=33.6e9, arithmetic={"block": 660e9, "bf16": 220e9})
LLAMA, SMOL = PUBLISHED["llama-3.1-8b"], PUBLISHED["smollm2-135m"].in_precision("q4_1")
ON_GPU = SchedulerConfig(max_rows=1024, max_step_tokens=8192, max_waiting=1 << 20)
ON_CPU = SchedulerConfig(max_rows=32, max_waiting=1 << 20)


def at_once(count: int, prompt: int, output: int, shared: int = 0) -> TraceWorkload:
    rng = random.Random(0)
    head = rng.randbytes(4 * shared)
    calls = [
        TraceCall(0.0, array("I", head + rng.randbytes(4 * (prompt - shared))), array("I", rng.randbytes(4 * output)),
             CacheKey(), "m")
        for _ in range(count)
    ]  # fmt: skip
    return TraceWorkload(tuple(calls), "at once", False, 0, Counter(), count)


@pytest.mark.parametrize(
    "shape, hardware, config, load, measured",
    [
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(1, 512, 256), 203),  # vLLM 199.8, SGLang 206.8
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(100, 512, 256), 7600),  # 7,169 and 8,009
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(1024, 128, 128), 16_100),  # 15,176 and 17,027
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(300, 2048, 128), 2_080),  # 2,048 and 2,109
        (LLAMA.in_precision("fp8"), PRESETS["h200"], ON_GPU, at_once(100, 512, 256), 10_700),
        (PUBLISHED["llama-3.3-70b"].in_precision("fp8"), PRESETS["h200"], ON_GPU, at_once(1, 512, 256), 47.9),
        (SMOL, EPYC, ON_CPU, at_once(1, 16, 256), 226),
        (SMOL, EPYC, ON_CPU, at_once(64, 256, 64), 188),  # 165 to 205
        (SMOL, EPYC, ON_CPU, at_once(64, 544, 64, shared=512), 423),  # 386 to 459
    ],
    ids=["h200-1", "h200-100", "h200-128", "h200-2048", "h200-fp8-100", "h200-70b", "epyc-1", "epyc-32", "epyc-shared"],
)
def test_simulated_throughput_matches_measurements(shape, hardware, config, load, measured):
    served = Simulation(Roofline(shape, hardware), config, 60_000).run(load)
    assert served.output_rate == pytest.approx(measured, rel=TOLERANCE)


def test_device_time_is_split_into_prompts_recomputation_and_decode():
    """Three prompts in turn through a cache that holds one: the second round is recomputed."""
    rng = random.Random(0)
    prompts = [array("I", rng.randbytes(4 * 320)) for _ in range(3)]
    calls = [
        TraceCall(at * 10.0, prompts[at % 3], array("I", rng.randbytes(4 * 8)), CacheKey(), "m") for at in range(6)
    ]
    workload = TraceWorkload(tuple(calls), "turns", True, 0, Counter(), 6)
    small = Simulation(Roofline(SMOL, EPYC), ON_CPU, 24).run(workload)
    large = Simulation(Roofline(SMOL, EPYC), ON_CPU, 240).run(workload)
    assert small.hit_rate == 0.0 and small.recompute_seconds == pytest.approx(small.prompt_seconds, rel=0.05)
    assert large.hit_rate == pytest.approx(0.5, abs=0.01) and large.recompute_seconds < 0.1 * large.prompt_seconds
    assert small.decode_seconds == pytest.approx(large.decode_seconds, rel=0.05)
    assert small.concurrency.peak == 1 and small.num_steps >= 6 * 8


def test_calls_beyond_the_context_are_refused_and_counted():
    served = Simulation(Roofline(SMOL, EPYC), SchedulerConfig(max_context=100), 100).run(at_once(2, 200, 5))
    assert (served.num_calls, served.num_refused) == (0, 2)


def test_paged_memory_holds_15_requests_where_reserved_memory_holds_6():
    capacity = RequestCapacity(6e9, reserved_bytes=1e9, paged_bytes=400e6)
    assert (capacity.reserved, capacity.paged, capacity.ratio) == (6, 15, 2.5)


def test_kv_memory_is_the_device_memory_minus_the_model():
    workload = traces.workload(traces.shared())
    memory = estimate_kv_memory(
        workload, summarize_workload(workload).context, Roofline(LLAMA, PRESETS["h100"]), 16, 0.85
    )
    assert memory.token_bytes == 128 * 1024  # K and V, 8 heads of 128 two-byte numbers, 32 layers
    assert memory.model_bytes == pytest.approx(16.06e9 + 3e9, rel=0.01)
    assert memory.kv_bytes == pytest.approx(0.9 * 80e9 - memory.model_bytes)
    assert memory.capacity.paged_bytes == 464 * memory.token_bytes and memory.capacity.reserved_bytes == 2048 * 131072
    assert memory.shared_capacity.paged > 4 * memory.capacity.paged > 16 * memory.capacity.reserved
    assert memory.fits[0].num_requests == memory.kv_bytes // (2048 * 131072) and memory.fits[-1].context == 131072
    assert not estimate_kv_memory(
        workload, summarize_workload(workload).context, Roofline(PUBLISHED["llama-3.3-70b"], PRESETS["h100"]), 16, 0.0
    ).is_enough


def what_ifs(lines, shape=LLAMA, hardware="h100", num_blocks=2000):
    workload = traces.workload(lines)
    setup = ServingSetup(Roofline(shape, PRESETS[hardware]), ON_GPU, num_blocks)
    served = setup.serve(workload)
    return {each.name: each for each in run_what_ifs(workload, setup, served, find_shared_prefixes(workload))}


def test_every_question_has_an_answer_with_numbers():
    found = what_ifs(traces.shared(60))
    assert set(found) == {"quantization", "kv_quantization", "speculation", "pins", "second_replica"}
    assert found["quantization"].helps  # one stream is bound by reading the weights, which become half as large
    before, after = found["quantization"].before, found["quantization"].after
    assert after["token_gap_p50"] == pytest.approx(before["token_gap_p50"] / 2, rel=0.2)
    assert found["speculation"].helps and not found["pins"].helps and not found["second_replica"].helps


def test_a_second_replica_helps_a_full_batch_and_speculation_does_not():
    burst = [each | {"time": 0.0} for each in traces.unique(600)]
    found = what_ifs(burst, num_blocks=20_000)
    assert not found["speculation"].helps
    rates = [found["second_replica"].before, found["second_replica"].after]
    assert found["second_replica"].helps
    assert rates[1]["output_tokens_per_second"] > 1.3 * rates[0]["output_tokens_per_second"]


def test_a_second_replica_keeps_the_hit_rate_with_prefix_routing():
    rng = random.Random(8)
    prefixes = [traces.ids(rng, 320) for _ in range(20)]
    lines = [traces.line(at * 0.1, prefixes[at % 20] + traces.ids(rng, 40), 8) for at in range(60)]
    replica = what_ifs(lines, num_blocks=2000)["second_replica"]
    assert replica.after["hit_rate"] == pytest.approx(replica.before["hit_rate"], abs=0.02)
    assert "with round-robin routing" in replica.explanation


def test_the_maximum_request_rate_exceeds_a_light_load():
    workload = traces.workload(traces.shared(60))
    setup = ServingSetup(Roofline(SMOL, EPYC), ON_CPU, 2000)
    assert max_request_rate(setup, workload) > 2.0


@pytest.mark.parametrize(
    "name, found",
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Meta-Llama-3-70B", "llama-3.3-70b"),
        ("llama3.3:70b", "llama-3.3-70b"),
        ("qwen3:8b", "qwen3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("gpt-4o", None),
    ],
)
def test_known_models_are_found_by_any_spelling(name, found):
    shape = published_shape(name)
    assert (shape.name if shape else None) == found


@pytest.mark.parametrize(
    "name, billions", [("llama-3.1-8b", 7.50), ("llama-3.3-70b", 69.5), ("qwen2.5-7b", 7.07), ("smollm2-135m", 0.1345)]
)
def test_the_computed_number_of_weights_matches_the_published_one(name, billions):
    """All weights that a token is multiplied with: not the embedding table, unless it is also the head."""
    assert PUBLISHED[name].num_weights / 1e9 == pytest.approx(billions, rel=0.01)


def test_the_shape_of_a_file_matches_the_published_one(model_file):
    shape, published = checkpoint_shape(model_file, load({}, {}), device_facts("cpu")), PUBLISHED["smollm2-135m"]
    assert shape.num_weights == pytest.approx(published.num_weights, rel=0.01) and shape.precision == "q4_1"
    assert shape.kv_token_bytes == published.kv_token_bytes and shape.weight_bytes == pytest.approx(96.4e6, rel=0.01)


def test_unknown_hardware_is_refused_and_this_machine_is_measured():
    with pytest.raises(InvalidRequest, match="here, h200"):
        find_hardware("abacus")
    with pytest.raises(InvalidRequest, match="bf16"):
        LLAMA.in_precision("q99")
    assert find_hardware("NVIDIA H100").name == "h100" and find_hardware("4090").name == "rtx4090"
    here = measure_this_machine()
    assert here.device == "cpu" and here.bandwidth > 1e8 and "measured" in here.source
