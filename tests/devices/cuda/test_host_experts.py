"""Experts in host memory: the same bits as on the GPU, wherever they are and while they move."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import pytest

from quire.devices.base import LoweringOptions
from quire.devices.cuda import host_experts
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.host_experts import STEPS, HostExperts
from quire.devices.cuda.program import CudaProgram
from quire.devices.facts import DeviceUnavailable
from quire.ops.batch import Batch
from tests.devices.cuda.expert_graphs import LIMITS, ExpertModel, batch_of
from tests.devices.interpreted import on_gpu

pytestmark = pytest.mark.device

MODELS = {
    "mxfp4": ExpertModel(("mxfp4", "mxfp4"), dim=64, ffn=64, num_experts=8, num_layers=2),
    "bf16": ExpertModel(("bf16", "bf16"), dim=64, ffn=64, num_experts=8, num_layers=2),
    "large": ExpertModel(("q4_k", "q6_k"), dim=1024, ffn=768, num_experts=32, top=4, num_layers=3),
}


def expert_bytes(model: ExpertModel) -> int:
    return sum(weight.num_bytes for weight in model.weights.values() if len(weight.shape) == 3)


def lowered(model: ExpertModel, place: str, share: float, **options: object) -> CudaProgram:
    """A program with this share of the experts in host memory."""
    limits = replace(LIMITS, kv_dtype="bf16")
    options = {"captures": False, "experts_on_host": int(share * expert_bytes(model)), **options}
    return CudaDevice(place).lower(model.draw(), model.weights, limits, LoweringOptions(**options))  # type: ignore[arg-type]


def logits(program: CudaProgram, batch: Batch) -> np.ndarray:
    found = program.launch(batch).result().logits
    assert found is not None
    return found


def hosted(program: CudaProgram) -> HostExperts:
    assert program.hosted is not None
    return program.hosted


def on_gpu_of(program: CudaProgram) -> list[list[bool]]:
    stacks = [layer.linear.inward for layer in hosted(program).layers]
    return [[stack.is_on_gpu(expert) for expert in range(stack.num_experts)] for stack in stacks]


@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("name", ["mxfp4", "bf16", *on_gpu("large")])
def test_numbers_do_not_depend_on_where_experts_are(name: str, share: float, place: str):
    model = MODELS[name]
    without, some = lowered(model, place, 0.0), lowered(model, place, share)
    assert without.hosted is None
    for num_tokens in (1, 9):
        batch = batch_of(num_tokens)
        np.testing.assert_array_equal(logits(some, batch), logits(without, batch))


@pytest.mark.parametrize("name", ["mxfp4", *on_gpu("large")])
def test_experts_in_use_move_to_the_gpu_and_the_numbers_stay(name: str, place: str):
    program, batch = lowered(MODELS[name], place, 0.5), batch_of(1, seed=3)
    first, before = logits(program, batch), on_gpu_of(program)
    for _ in range(2 * STEPS if name == "large" else 8):
        np.testing.assert_array_equal(logits(program, batch), first)
    while program.use_idle_time():
        pass
    after = on_gpu_of(program)
    np.testing.assert_array_equal(logits(program, batch), first)
    assert hosted(program).num_exchanged > 0 and before != after
    reads = hosted(program)._recent
    for layer, now in enumerate(after):
        used = [expert for expert in range(len(now)) if reads[layer, expert] > 0]
        assert len(used) == MODELS[name].top and sum(now) == sum(before[layer])
        assert all(now[expert] for expert in used), "all experts of this token are on the GPU now"


@pytest.mark.gpu
def test_a_captured_step_goes_on_after_experts_have_moved(place: str):
    program = lowered(MODELS["large"], place, 0.5, captures=True)
    batch, expected = batch_of(1, seed=3), None
    for _ in range(3 * STEPS):
        found = logits(program, batch)
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)
    assert any(each is not None for each in program._captured.values()) and hosted(program).num_exchanged > 0


@dataclass(frozen=True, slots=True)
class SmallDevice(CudaDevice):
    """A device with so much memory for weights."""

    room: int = 0

    def _room(self, *_: object) -> int:
        return self.room


def test_auto_uses_host_memory_only_if_the_model_does_not_fit(place: str):
    model = MODELS["mxfp4"]
    others = sum(weight.num_bytes for weight in model.weights.values()) - expert_bytes(
        model
    )  # float32, half on the GPU
    on_host = []
    for room in (others + 4 * expert_bytes(model), others // 2 + expert_bytes(model), 0):
        options = LoweringOptions(captures=False, experts_on_host=None)
        limits = replace(LIMITS, kv_dtype="bf16")
        program = SmallDevice(place, room=room).lower(model.draw(), model.weights, limits, options)
        on_host.append(0 if program.hosted is None else len(program.hosted.layers[0].linear.inward.host))
    assert on_host[0] == 0 and 3 <= on_host[1] <= 5 and on_host[2] == model.num_experts


def test_experts_that_no_memory_holds_are_refused(place: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_experts, "host_bytes", lambda: 1000)
    with pytest.raises(DeviceUnavailable, match="would be in host memory, which has room for"):
        lowered(MODELS["mxfp4"], place, 0.5)


def test_it_says_how_much_is_where(place: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "quire.devices.cuda"):
        lowered(MODELS["mxfp4"], place, 0.5)
    (line,) = (each for each in caplog.messages if each.startswith("experts:"))
    assert "on the GPU" in line and "in host memory" in line
    assert ("tokens/s" in line) == (place == "cuda")


def test_counting_takes_place_only_if_experts_are_in_host_memory(place: str):
    program = lowered(MODELS["mxfp4"], place, 0.5)
    logits(program, batch_of(1))
    assert hosted(program).reads.sum(1).tolist() == [2, 2]  # two experts of each layer
    assert lowered(MODELS["mxfp4"], place, 0.0).hosted is None
