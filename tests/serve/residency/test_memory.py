"""The memory of an engine with window groups and states: what moves between models, and what keeps its size."""

from __future__ import annotations

import pytest

from quire.config import load
from quire.engine.messages import Counters, Ready, WindowCache
from quire.engine.need import Need
from quire.runner.cache_plan import CacheBytes, WindowBytes
from quire.runner.memory import ModelMemory, fit_cache, limits_of
from quire.serve.residency.contract import EngineRecord
from quire.serve.residency.memory import HostFit, fit_model

pytestmark = pytest.mark.pure

CONFIG = load({"max_rows": 4, "max_step_tokens": 32, "max_context": 4096, "min_context": 64}, {})
SIZES = CacheBytes(10, (WindowBytes(32, 40),), state=300)
BUDGET = 100_000


def fitted(sizes: CacheBytes = SIZES) -> HostFit:
    fit = fit_model("toy", Need(1000, sizes, CONFIG, 4096), CONFIG, BUDGET)
    assert isinstance(fit, HostFit)
    return fit


def ready(fit: HostFit, num_bytes: int) -> Ready:
    """What an engine of this size reports."""
    config, plan = fit_cache(fit.engine_config(CONFIG, num_bytes), ModelMemory(BUDGET, 0, fit.need.cache))
    most = limits_of(config, plan).num_blocks
    windows = tuple(WindowCache(*group, 40) for group in plan.windows)
    return Ready(
        "cpu", "toy", 100, 4096, plan.num_blocks, 16, 0.1, most, plan.sizes.tokens,
        windows=windows, num_states=plan.num_states, state_bytes=300,
    )  # fmt: skip


def test_an_engine_takes_no_more_than_it_was_given_at_any_size() -> None:
    fit = fitted()
    assert 1000 < fit.demand.least < fit.demand.most <= BUDGET
    for num_bytes in (fit.demand.least, (fit.demand.least + fit.demand.most) // 2, fit.demand.most):
        engine = ready(fit, num_bytes)
        assert fit.bytes_with(engine.num_blocks, engine) <= num_bytes
        for other in (fit.demand.least, num_bytes, fit.demand.most):
            assert fit.bytes_with(fit.blocks_in(other, engine), engine) <= other
        assert fit.blocks_in(fit.demand.most, engine) <= engine.most_blocks


def test_a_model_whose_blocks_take_no_memory_is_not_resized() -> None:
    fit = fitted(CacheBytes(0, state=300))
    assert fit.demand.least == fit.demand.most
    engine = ready(fit, fit.demand.most)
    assert fit.blocks_in(fit.demand.most, engine) == engine.num_blocks == engine.most_blocks
    assert fit.bytes_with(engine.num_blocks, engine) == fit.demand.most


def test_windows_and_states_in_use_are_counted() -> None:
    fit = fitted()
    engine = ready(fit, fit.demand.least)
    record = EngineRecord(engine, "", fit.demand.least, 1000, None)
    blocks = engine.windows[0].num_blocks
    idle = Counters(
        num_blocks=engine.num_blocks,
        num_free_blocks=engine.num_blocks,
        num_window_blocks=blocks,
        num_states=engine.num_states,
    )
    assert record.used_bytes(idle) == 1000
    busy = Counters(
        num_blocks=engine.num_blocks,
        num_free_blocks=engine.num_blocks - 7,
        num_window_blocks=blocks,
        num_held_window_blocks=blocks - 1,
        num_cached_window_blocks=1,
        num_states=engine.num_states,
        num_held_states=2,
        num_checkpoints=3,
    )
    assert record.used_bytes(busy) == 1000 + 7 * 10 + blocks * 40 + 5 * 300
    assert busy.kv_usage == (blocks - 1) / blocks
