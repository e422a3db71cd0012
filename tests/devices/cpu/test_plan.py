"""The predicted memory of a step is what the buffers of a lowered program take, to the byte, fused or not."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from quire.devices import base
from quire.devices.base import LoweringOptions
from quire.devices.cpu import FACTS
from quire.models.draw import DrawnModel
from tests.devices.cpu.programs import HAS_NATIVE, LIMITS, lower, quantized_model
from tests.models.toys import make_toy

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

FUSE = pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
# Each has other buffers: rows alone; rows and blocks; scaled logits with a cap; parallel blocks; layers that share KV;
# rows of slots of experts; what the columns of states share.
MODELS = {
    "llama": lambda: make_toy("llama").draw(),
    "q4_0": lambda: quantized_model("q4_0"),
    "gemma2": lambda: make_toy("gemma2").draw(),
    "falcon": lambda: make_toy("falcon").draw(),
    "gemma4": lambda: make_toy("gemma4").draw(),
    "mixtral": lambda: make_toy("mixtral").draw(),
    "qwen3_5": lambda: make_toy("qwen3_5").draw(),
}


def planned(model: DrawnModel, limits: base.Limits, **options) -> int:
    return base.step_bytes(FACTS, model.graph, model.weights, limits, LoweringOptions(**options))


@FUSE
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("changes", [{"max_tokens": 512}, {"max_logits": 17}], ids=lambda each: next(iter(each)))
def test_other_limits_change_the_memory_as_planned(name: str, changes: dict[str, int], fuse: bool):
    """Weights and KV caches do not depend on these limits, so the difference is that of the buffers."""
    model, other = MODELS[name](), replace(LIMITS, **changes)
    taken = lower(model, other, fuse=fuse).num_bytes - lower(model, LIMITS, fuse=fuse).num_bytes  # type: ignore[attr-defined]
    assert taken == planned(model, other, fuse=fuse) - planned(model, LIMITS, fuse=fuse) != 0


@pytest.mark.parametrize("name", MODELS)
def test_plain_kernels_need_more_buffers_than_fused_ones(name: str):
    model = MODELS[name]()
    assert planned(model, LIMITS, fuse=False) > planned(model, LIMITS, fuse=True)


def test_a_plan_reads_no_weight_and_warns_of_nothing(monkeypatch, caplog):
    from quire.devices.cpu.lower import KERNELS

    model = quantized_model("q4_0")
    monkeypatch.delitem(KERNELS, "rms_norm")
    monkeypatch.setattr("quire.graph.weight.Weight.float32", None)
    monkeypatch.setattr("quire.graph.weight.Weight.raw", None)
    with caplog.at_level(logging.WARNING):
        assert planned(model, LIMITS, fuse=False) > 0
    assert not caplog.records
