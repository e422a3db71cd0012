"""The simulated device is as fast as real ones were, within a quarter; memory and questions come out as they must."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import replace

import pytest

from quire.advisor.describe import describe
from quire.advisor.hardware import PRESETS, hardware_named, this_machine
from quire.advisor.memory import Slots, memory_of
from quire.advisor.prefixes import prefix_tree
from quire.advisor.roofline import Roofline
from quire.advisor.shape import PUBLIC, public_shape, shape_of
from quire.advisor.simulate import Simulation
from quire.advisor.whatif import Setup, num_per_second, what_if
from quire.advisor.workload import Call, Workload
from quire.config import SchedulerConfig, load
from quire.devices.facts import device_facts
from quire.types.errors import InvalidRequest
from quire.types.request import CacheKey
from tests.advisor import traces

pytestmark = pytest.mark.pure

NEAR = 0.25
# 2 cores of an EPYC, as measured in docs/PERFORMANCE.md
EPYC = replace(PRESETS["laptop"], bandwidth=33.6e9, arithmetic={"block": 660e9, "bf16": 220e9})
LLAMA, SMOL = PUBLIC["llama-3.1-8b"], PUBLIC["smollm2-135m"].in_precision("q4_1")
ON_GPU = SchedulerConfig(max_rows=1024, max_step_tokens=8192, max_waiting=1 << 20)
ON_CPU = SchedulerConfig(max_rows=32, max_waiting=1 << 20)


def at_once(count: int, prompt: int, output: int, shared: int = 0) -> Workload:
    rng = random.Random(0)
    head = rng.randbytes(4 * shared)
    calls = [
        Call(0.0, array("I", head + rng.randbytes(4 * (prompt - shared))), array("I", rng.randbytes(4 * output)),
             CacheKey(), "m")
        for _ in range(count)
    ]  # fmt: skip
    return Workload(tuple(calls), "at once", False, 0, Counter(), count)


@pytest.mark.parametrize(
    "shape, hardware, config, load, measured",
    [
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(1, 512, 256), 203),  # vLLM 199.8, SGLang 206.8
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(100, 512, 256), 7600),  # 7,169 and 8,009
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(1024, 128, 128), 16_100),  # 15,176 and 17,027
        (LLAMA, PRESETS["h200"], ON_GPU, at_once(300, 2048, 128), 2_080),  # 2,048 and 2,109
        (LLAMA.in_precision("fp8"), PRESETS["h200"], ON_GPU, at_once(100, 512, 256), 10_700),
        (PUBLIC["llama-3.3-70b"].in_precision("fp8"), PRESETS["h200"], ON_GPU, at_once(1, 512, 256), 47.9),
        (SMOL, EPYC, ON_CPU, at_once(1, 16, 256), 226),
        (SMOL, EPYC, ON_CPU, at_once(64, 256, 64), 188),  # 165 to 205
        (SMOL, EPYC, ON_CPU, at_once(64, 544, 64, shared=512), 423),  # 386 to 459
    ],
    ids=["h200-1", "h200-100", "h200-128", "h200-2048", "h200-fp8-100", "h200-70b", "epyc-1", "epyc-32", "epyc-shared"],
)
def test_simulated_throughput_is_near_what_was_measured(shape, hardware, config, load, measured):
    served = Simulation(Roofline(shape, hardware), config, 60_000).run(load)
    assert served.output_rate == pytest.approx(measured, rel=NEAR)


def test_times_are_split_into_prompts_recomputation_and_decoding():
    """Three prompts in turn through a cache that holds one: every second round is computed again."""
    rng = random.Random(0)
    prompts = [array("I", rng.randbytes(4 * 320)) for _ in range(3)]
    calls = [Call(at * 10.0, prompts[at % 3], array("I", rng.randbytes(4 * 8)), CacheKey(), "m") for at in range(6)]
    workload = Workload(tuple(calls), "turns", True, 0, Counter(), 6)
    small = Simulation(Roofline(SMOL, EPYC), ON_CPU, 24).run(workload)
    large = Simulation(Roofline(SMOL, EPYC), ON_CPU, 240).run(workload)
    assert small.hit_rate == 0.0 and small.again_seconds == pytest.approx(small.prompt_seconds, rel=0.05)
    assert large.hit_rate == pytest.approx(0.5, abs=0.01) and large.again_seconds < 0.1 * large.prompt_seconds
    assert small.decode_seconds == pytest.approx(large.decode_seconds, rel=0.05)
    assert small.company.peak == 1 and small.num_steps >= 6 * 8


def test_what_never_fits_is_refused_and_counted():
    served = Simulation(Roofline(SMOL, EPYC), SchedulerConfig(max_context=100), 100).run(at_once(2, 200, 5))
    assert (served.num_calls, served.num_refused) == (0, 2)


def test_pages_of_400_mb_hold_15_requests_where_reservations_of_1_gb_hold_6():
    slots = Slots(6e9, reserved_bytes=1e9, paged_bytes=400e6)
    assert (slots.reserved, slots.paged, slots.ratio) == (6, 15, 2.5)


def test_memory_is_what_the_device_has_less_the_model():
    workload = traces.workload(traces.shared())
    memory = memory_of(workload, describe(workload).context, Roofline(LLAMA, PRESETS["h100"]), 16, 0.85)
    assert memory.token_bytes == 128 * 1024  # two of 8 heads of 128 halves in 32 layers
    assert memory.model_bytes == pytest.approx(16.06e9 + 3e9, rel=0.01)
    assert memory.kv_bytes == pytest.approx(0.9 * 80e9 - memory.model_bytes)
    assert memory.slots.paged_bytes == 464 * memory.token_bytes and memory.slots.reserved_bytes == 2048 * 131072
    assert memory.shared_slots.paged > 4 * memory.slots.paged > 16 * memory.slots.reserved
    assert memory.fits[0].num_requests == memory.kv_bytes // (2048 * 131072) and memory.fits[-1].context == 131072
    assert not memory_of(
        workload, describe(workload).context, Roofline(PUBLIC["llama-3.3-70b"], PRESETS["h100"]), 16, 0.0
    ).is_enough


def ask(lines, shape=LLAMA, hardware="h100", num_blocks=2000):
    workload = traces.workload(lines)
    setup = Setup(Roofline(shape, PRESETS[hardware]), ON_GPU, num_blocks)
    served = setup.serve(workload)
    return {each.name: each for each in what_if(workload, setup, served, prefix_tree(workload))}


def test_questions_have_answers_with_numbers():
    said = ask(traces.shared(60))
    assert set(said) == {"quantization", "kv_quantization", "speculation", "pins", "second_replica"}
    assert said["quantization"].helps  # one stream is bound by reading weights, and these are half as large
    before, after = said["quantization"].before, said["quantization"].after
    assert after["token_gap_p50"] == pytest.approx(before["token_gap_p50"] / 2, rel=0.2)
    assert said["speculation"].helps and not said["pins"].helps and not said["second_replica"].helps


def test_drafts_do_not_help_a_full_batch_and_a_second_replica_does():
    crowd = [each | {"time": 0.0} for each in traces.unique(600)]
    said = ask(crowd, num_blocks=20_000)
    assert not said["speculation"].helps
    rates = [said["second_replica"].before, said["second_replica"].after]
    assert said["second_replica"].helps
    assert rates[1]["output_tokens_per_second"] > 1.3 * rates[0]["output_tokens_per_second"]


def test_a_second_replica_keeps_hits_where_beginnings_stay_together():
    rng = random.Random(8)
    prefixes = [traces.ids(rng, 320) for _ in range(20)]
    lines = [traces.line(at * 0.1, prefixes[at % 20] + traces.ids(rng, 40), 8) for at in range(60)]
    replica = ask(lines, num_blocks=2000)["second_replica"]
    assert replica.after["hit_rate"] == pytest.approx(replica.before["hit_rate"], abs=0.02)
    assert "if they take turns" in replica.says


def test_the_most_that_can_be_served_is_more_than_what_came():
    workload = traces.workload(traces.shared(60))
    setup = Setup(Roofline(SMOL, EPYC), ON_CPU, 2000)
    assert num_per_second(setup, workload) > 2.0


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
def test_known_models_are_found_however_they_are_written(name, found):
    shape = public_shape(name)
    assert (shape.name if shape else None) == found


@pytest.mark.parametrize(
    "name, billions", [("llama-3.1-8b", 7.50), ("llama-3.3-70b", 69.5), ("qwen2.5-7b", 7.07), ("smollm2-135m", 0.1345)]
)
def test_published_sizes_come_to_the_published_numbers(name, billions):
    """All weights that a token meets: those of the table of embeddings are not, unless it is the head too."""
    assert PUBLIC[name].num_weights / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_file_has_the_sizes_that_are_published_for_it(model_file):
    shape, published = shape_of(model_file, load({}, {}), device_facts("cpu")), PUBLIC["smollm2-135m"]
    assert shape.num_weights == pytest.approx(published.num_weights, rel=0.01) and shape.precision == "q4_1"
    assert shape.kv_token_bytes == published.kv_token_bytes and shape.weight_bytes == pytest.approx(96.4e6, rel=0.01)


def test_a_machine_that_nobody_knows_is_refused_and_this_one_is_measured():
    with pytest.raises(InvalidRequest, match="here, h200"):
        hardware_named("abacus")
    with pytest.raises(InvalidRequest, match="bf16"):
        LLAMA.in_precision("q99")
    assert hardware_named("NVIDIA H100").name == "h100" and hardware_named("4090").name == "rtx4090"
    here = this_machine()
    assert here.device == "cpu" and here.bandwidth > 1e8 and "measured" in here.source
