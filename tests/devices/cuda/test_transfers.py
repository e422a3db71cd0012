"""Two engines of the device exchange blocks: in deterministic mode the text has the bits of one engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from quire.devices.cuda import FACTS
from quire.devices.cuda.pending import CudaPending
from quire.devices.cuda.program import CudaProgram
from quire.ops.batch import Batch
from quire.types.request import CacheKey, SamplingParams
from tests.devices.cuda.models import Placed, small
from tests.devices.interpreted import on_gpu
from tests.engine.replicas import Replica, replicas, source_of
from tests.models.toys import Toy, some_tokens, toy_with_sizes

pytestmark = pytest.mark.device


def slow(*values: Any) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


GREEDY = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True, logprobs=2)
ALONE = CacheKey(salt="alone")  # finds nothing that came from elsewhere
SETTINGS: dict[str, Any] = {
    **{"dtype": "bf16", "kv_dtype": "bf16", "deterministic": True, "max_step_tokens": 24, "max_rows": 4},
    **{"num_blocks": 24, "max_context": 128, "transfer_patience": 60.0},
}
# Paged KV; windows; latent attention; short convolutions with attention; Mamba-2 alone.
CASES = ["llama", "qwen2-windows", *slow("deepseek_v2"), "lfm2", *slow("mamba2")]
# Columns that products of deterministic mode divide.
WIDTHS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        **{"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4},
        **{"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
        **{"moe_intermediate_size": 32, "num_hidden_layers": 2},
    },
    "lfm2": {
        **{"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"block_auto_adjust_ff_dim": False},
    },
    "mamba2": {},
}


def toy_of_case(name: str) -> Toy:
    return toy_with_sizes(name, WIDTHS[name]) if name in WIDTHS else small(name)


@pytest.fixture(autouse=True)
def one_kernel_at_a_time(place, monkeypatch):
    """Triton's interpreter has one grid for all threads, and each engine has a thread."""
    lock, launch = threading.Lock(), CudaProgram.launch

    def launch_alone(program: CudaProgram, batch: Batch) -> CudaPending:
        with lock:
            return launch(program, batch)

    if place == "cpu":
        monkeypatch.setattr(CudaProgram, "launch", launch_alone)


def fetched(prefill: Replica, decode: Replica, length: int, computes: bool = True) -> int:
    """Check a text behind fetched blocks; return the tokens that were fetched."""
    prompt, before = some_tokens(length), decode.counters().fetched_tokens
    if not computes:
        prefill.answer(prompt, sampling=GREEDY)
    answer = decode.answer(prompt, source_of(prefill, prompt, computes), sampling=GREEDY)
    assert answer.said() == decode.answer(prompt, cache=ALONE, sampling=GREEDY).said()
    assert decode.counters().num_failed_fetches == 0 and prefill.counters().num_held_blocks == 0
    return decode.counters().fetched_tokens - before


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_that_another_engine_computes_is_answered_with_the_same_bits(case, place):
    """With two steps in flight at both ends. The prompt takes two steps, whose blocks leave one after the other."""
    assert FACTS.steps_in_flight == 2
    with replicas(case=toy_of_case(case), device=Placed(place), **SETTINGS) as (prefill, decode):
        assert fetched(prefill, decode, 37) == 32


@pytest.mark.parametrize("format", ["f8_e4m3", *on_gpu("f16")])
def test_a_cached_prefix_in_another_number_format_is_fetched(format, place):
    settings = SETTINGS | {"kv_dtype": format}
    with replicas(case=small("llama"), device=Placed(place), **settings) as (prefill, decode):
        assert fetched(prefill, decode, 37, computes=False) == 32


@pytest.mark.slow
def test_blocks_come_while_other_requests_are_in_flight(place):
    """The blocks are written between steps of a request that decodes, and change nothing of it."""
    long = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, logprobs=2)
    with replicas(case=small("llama"), device=Placed(place), **SETTINGS) as (prefill, decode):
        busy, heard = some_tokens(21), list[Any]()
        thread = threading.Thread(target=lambda: heard.append(decode.answer(busy, sampling=long)))
        thread.start()
        assert fetched(prefill, decode, 70) == 64
        thread.join()
        assert heard[0].said() == decode.answer(busy, cache=ALONE, sampling=long).said()


@pytest.mark.parametrize("other", [*slow({"kv_dtype": "f8_e4m3"}, {"deterministic": False}), {"device": "cpu"}])
def test_engines_with_other_kernels_or_formats_exchange_nothing_and_compute(other, place):
    prompt = some_tokens(37)
    changed = {"device": Placed(place), **SETTINGS, **other}
    if changed["device"] == "cpu":
        changed |= {"dtype": None, "deterministic": None}
    with (
        replicas(1, case=small("llama"), **changed) as (prefill,),
        replicas(1, case=small("llama"), device=Placed(place), **SETTINGS) as (decode,),
    ):
        answer = decode.answer(prompt, source_of(prefill, prompt), sampling=GREEDY)
        assert answer.said() == decode.answer(prompt, cache=ALONE, sampling=GREEDY).said()
        counters = decode.counters()
        assert counters.num_failed_fetches == 1 and counters.fetched_tokens == 0
