"""What a model will take is known from its header, and is no less than it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("zmq")

from quire.bench.machine.processes import resident_bytes
from quire.config import BadSetting, load
from quire.devices.base import LoweringOptions, step_bytes
from quire.devices.facts import device_facts
from quire.engine.client import Client
from quire.engine.launch import ChildEngine
from quire.engine.messages import (
    Configure,
)
from quire.engine.need import WHOLE, Budget, Need, Share, budget_bytes, budget_of, memory_need, need_of
from quire.models.draw import draw
from quire.runner.cache_plan import CacheBytes, WindowBytes
from quire.runner.memory import limits_of, with_kv_format
from quire.types.output import Finished
from quire.types.request import GenerateRequest, SamplingParams
from quire.weights.checkpoint import open_checkpoint

NEED = Need(fixed_bytes=1000, cache=CacheBytes(10), config=load({}, {}), max_context=160)


@pytest.mark.pure
def test_the_longest_context_is_what_the_memory_holds():
    assert NEED.bytes_for(160) == 1100 and NEED.bytes_for(17) == 1020
    assert [NEED.longest(size) for size in (0, 1000, 1019, 1020, 5000)] == [0, 0, 16, 32, 160]
    assert NEED.most_bytes(160, 100_000) == 1800 and NEED.most_bytes(160, 1700) == 1425


@pytest.mark.pure
def test_windows_and_states_are_part_of_the_need():
    config = load({"max_rows": 4, "max_step_tokens": 32}, {})
    need = Need(1000, CacheBytes(10, (WindowBytes(32, 40),), state=300), config, max_context=4096)
    one = need.bytes_for(4096)
    assert one == 1000 + 256 * 10 + (3 + 4 * 3) * 40 + 8 * 300
    assert need.bytes_for(64) == 1000 + 4 * 50 + 8 * 300  # too short for windows: all layers keep all tokens
    assert [need.longest(size) for size in (0, 1649, one - 1, one)] == [0, 0, 4080, 4096]
    for size in (one, one + 5000, 4 * one):
        count = need.blocks_in(4096, size)
        assert need.bytes_with(4096, count) <= size < need.bytes_with(4096, count + 1)
    assert need.blocks_beside(4096, 256, one + 999) == 256 + 99  # window groups and states keep their size
    assert not Need(1000, CacheBytes(0, state=300), config, 4096).can_resize(4096)


@pytest.mark.pure
def test_the_budget_is_as_set_or_a_share_of_the_machine():
    assert budget_bytes(load({"memory_budget": 1.5}, {})) == 1_500_000_000
    small, large = (budget_bytes(load({"memory_share": share}, {})) for share in (0.4, 0.8))
    assert abs(2 * small - large) <= 2


@pytest.mark.pure
def test_a_gpus_budget_is_all_of_its_own_memory():
    assert budget_of("cuda", load({}, {})) == Budget(WHOLE, "thousandths")
    assert budget_of("cpu", load({"memory_budget": 1.5}, {})) == Budget(1_500_000_000)
    with pytest.raises(BadSetting, match=r"memory_budget is 1\.5.*Set memory_share"):
        budget_of("cuda", load({"memory_budget": 1.5}, {}))


@pytest.mark.device
def test_on_a_gpu_every_model_takes_memory_share_whatever_its_size(model_file: Path):
    shares = [
        memory_need(model_file, "cuda", load({"memory_share": share, "max_context": 512}, {})) for share in (0.3, 1)
    ]
    assert shares == [Share(300, 512), Share(WHOLE, 512)]
    assert isinstance(memory_need(model_file, "cpu", load({}, {})), Need)


@pytest.mark.device
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_need_has_the_buffers_of_the_graph_as_it_is_lowered(device: str, model_file: Path):
    """`fuse` changes the prediction by what it changes of the device's plan."""
    config, facts, model = load({}, {}), device_facts(device), draw(open_checkpoint(model_file))
    limits = limits_of(with_kv_format(config, facts))
    needs, plans = [], []
    for fuse in (False, True):
        changed = replace(config, device=replace(config.device, fuse=fuse))
        needs.append(need_of(model_file, changed, facts).fixed_bytes)
        plans.append(step_bytes(facts, model.graph, model.weights, limits, LoweringOptions(fuse=fuse)))
    assert needs[0] - needs[1] == plans[0] - plans[1] != 0
    assert device == "cuda" or plans[0] > 1.5 * plans[1]


@pytest.mark.e2e
@pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
def test_a_full_engine_takes_no_more_memory_than_predicted(model_file: Path, fuse: bool):
    limits = {"num_blocks": 128, "max_context": 2048, "max_rows": 32}
    config = load({**limits, "fuse": fuse, "log_level": "warning"}, {})
    need = need_of(model_file, config, device_facts("cpu"))
    client = Client(lambda deliver: ChildEngine(Configure(str(model_file), "cpu", config), deliver))
    try:
        prompt = tuple(range(100, 1900))
        news = list(client.stream(GenerateRequest("a", prompt, SamplingParams(max_tokens=100, ignore_eos=True))))
        assert isinstance(news[-1], Finished)
        taken = resident_bytes(client._link.pid)  # type: ignore[attr-defined]
    finally:
        client.close()
    assert 0.4 * need.bytes_for(2048) < taken <= need.bytes_for(2048)  # pages of mapped weights may be reclaimed
