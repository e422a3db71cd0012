"""How many blocks each cache group gets, and how many states there are."""

from __future__ import annotations

import pytest

from quire.config import Config, load
from quire.devices.base import WindowLimits
from quire.ops.cache import PagedKV, State
from quire.runner.cache_plan import (
    MOST_NODES,
    REQUESTS,
    CacheBytes,
    CachePlan,
    WindowBytes,
    blocks_within,
    cache_bytes,
    context_blocks,
    plan_cache,
    plan_states,
)
from quire.runner.memory import ModelMemory, fit_cache, limits_of

pytestmark = pytest.mark.pure

GB = 1 << 30
WIDE, NARROW = PagedKV(4, 32, 32), PagedKV(4, 32, 32, window=1024)
HYBRID = CacheBytes(tokens=16 * 12_000, state=19_000_000)  # of the size of Qwen3.5-0.8B


def settings(**values: object) -> Config:
    return load({"kv_dtype": "f16", **values}, {})


def test_layers_are_counted_by_how_far_their_queries_read() -> None:
    chunked = PagedKV(4, 32, 32, chunk=512)
    specs = (WIDE, NARROW, NARROW, chunked, State((3, 8)), State((5,)))
    one = 4 * 64 * 2 * 16
    found = cache_bytes(specs, settings(), frees_windows=True)
    assert found == CacheBytes(one, (WindowBytes(512, one), WindowBytes(1024, 2 * one)), state=4 * (24 + 5))
    assert cache_bytes(specs, settings(), frees_windows=False) == CacheBytes(4 * one, state=4 * 29)
    assert found.within(REQUESTS * 1024) == CacheBytes(3 * one, (WindowBytes(512, one),), found.state)
    assert found.within(REQUESTS * 1024 + 1) == found


def test_a_window_group_has_windows_for_running_and_cached_requests_and_the_tokens_of_a_step() -> None:
    gemma = CacheBytes(10, (WindowBytes(1024, 52),))  # one layer of six keeps all tokens
    config = settings(max_context=32768)
    one, window, step = 2048, 65, 129
    few = plan_cache(gemma, config, one)
    assert few.windows == (WindowLimits(1024, step + REQUESTS * window),)
    many = plan_cache(gemma, config, 8 * one)
    assert many.windows == (WindowLimits(1024, step + 8 * REQUESTS * window),)
    assert many.num_bytes == 8 * one * 10 + (step + 8 * REQUESTS * window) * 52
    assert plan_cache(gemma, config, 100).windows == (WindowLimits(1024, 100),)  # no more than blocks of tokens


def test_all_rows_can_run_if_their_windows_take_little() -> None:
    half = CacheBytes(100, (WindowBytes(128, 100),))  # windows of 9 blocks
    step = 129
    assert plan_cache(half, settings(max_context=131072), 8192).windows[0].num_blocks == step + 2048  # a quarter
    assert plan_cache(half, settings(max_context=131072, max_rows=64), 8192).windows[0].num_blocks == step + 64 * 9


def test_every_planned_request_has_a_state_and_a_checkpoint() -> None:
    config = settings()
    assert plan_cache(HYBRID, config, 8 * 512).num_states == 8 * REQUESTS * 2
    assert plan_cache(HYBRID, config, 1).num_states == 2  # to read from and to write to
    assert plan_cache(HYBRID, settings(num_states=7), 4096).num_states == 7
    small = CacheBytes(16 * 12_000, state=82_000)  # of the size of LFM2-350M: all rows and their checkpoints
    assert plan_cache(small, config, 4096).num_states == 3 * 256 + 4096 * 16 // 4096
    assert plan_cache(small, settings(checkpoint_every=0), 4096).num_states == 3 * 256


@pytest.mark.parametrize("num_blocks, max_rows, num_rows", [(100, 256, 8), (100, 3, 3), (2, 256, 2)])
def test_beside_few_blocks_there_are_states_for_several_rows(num_blocks: int, max_rows: int, num_rows: int) -> None:
    config = settings(max_rows=max_rows, max_context=131072)
    assert plan_cache(HYBRID, config, num_blocks).num_states == 2 * num_rows


def test_blocks_windows_and_states_share_one_budget() -> None:
    sizes = CacheBytes(1000, (WindowBytes(512, 5000),), state=300_000)
    config = settings()
    for num_bytes in (0, 10**6, 10**7, 10**8):
        count = blocks_within(sizes, config, num_bytes, 4096)
        assert not count or plan_cache(sizes, config, count).num_bytes <= num_bytes
        assert count == 4096 or plan_cache(sizes, config, count + 1).num_bytes > num_bytes
    memory = ModelMemory(64 * GB, 8 * GB, CacheBytes(4 << 20, (WindowBytes(512, 20 << 20),)))
    fitted, plan = fit_cache(config, memory)
    assert 15 * GB < plan.num_bytes <= 16 * GB  # a quarter of the memory
    assert (fitted.cache.num_blocks or 0) == plan.num_blocks > 0
    most = fitted.cache.most_blocks or 0
    assert 8 * GB + plan.group_bytes + most * plan.sizes.tokens <= 64 * GB * 0.9


@pytest.mark.parametrize("sizes", [CacheBytes(0, state=2_400_000), CacheBytes(0, (WindowBytes(1024, 4000),))])
def test_blocks_without_bytes_are_enough_for_all_that_can_be_resumed_and_not_endless(sizes: CacheBytes) -> None:
    config, plan = fit_cache(settings(), ModelMemory(64 * GB, GB, sizes))
    num_texts = 8 * REQUESTS * 2 if sizes.state else (129 + 8 * REQUESTS * 65) // 65
    assert plan.num_blocks == config.cache.num_blocks == config.cache.most_blocks == num_texts * context_blocks(config)
    long = settings(max_context=1 << 20)
    assert fit_cache(long, ModelMemory(64 * GB, GB, sizes))[1].num_blocks == max(MOST_NODES, 8 * context_blocks(long))


def test_a_device_with_its_own_memory_has_useful_states_within_a_share_of_it() -> None:
    useful = 3 * 256 + 256 * 8192 // 4096
    assert plan_states(HYBRID, settings(), None) == CachePlan(HYBRID, 0, num_states=useful)
    assert plan_states(HYBRID, settings(), GB).num_states == GB // 19_000_000
    assert plan_states(HYBRID, settings(), -GB).num_states == 2
    assert plan_states(HYBRID, settings(num_states=9, num_blocks=4), GB) == CachePlan(HYBRID, 4, num_states=9)
    without_tokens = plan_states(CacheBytes(0, state=1_000_000), settings(max_context=4096), 64_000_000)
    assert (without_tokens.num_states, without_tokens.num_blocks) == (64, 64 * 256)
    assert plan_states(CacheBytes(100), settings(num_states=9), GB) == CachePlan(CacheBytes(100), 0)


def test_the_limits_of_a_program_have_the_groups_of_the_plan() -> None:
    config, plan = fit_cache(settings(num_blocks=600), ModelMemory(GB, 0, CacheBytes(9, (WindowBytes(64, 9),), 9)))
    limits = limits_of(config, plan)
    assert limits.num_blocks == 600 and limits.windows == plan.windows and limits.num_states == plan.num_states > 0
    assert limits_of(config).windows == ()
