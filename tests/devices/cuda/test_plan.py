"""The predicted memory of a step is what its tensors take at once; with fused ops it may be a little more."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

from quire.devices import base
from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda import FACTS
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.warm_up import largest_steps
from tests.models.toys import make_toy

pytestmark = pytest.mark.device

FUSE = pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
MORE = ("gemma2", "falcon", "gemma4", "qwen3_moe")
LIMITS = Limits(max_tokens=24, max_rows=2, max_logits=6, max_blocks=4, num_blocks=8, kv_dtype="f32")
LISTS = 1.2  # times: lists of the tokens of each expert, which are large beside the values of a toy
SLACK = 1.3  # times: a sum is counted beside its residual, though it is mostly in the same place


class LiveStorages(TorchDispatchMode):
    """Adds up the memory of the tensors that operators return, as long as they live, without the interpreter's own."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self.is_paused = 0, False
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.is_paused:
            return out
        old = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor) and each.untyped_storage()._cdata not in old:
                storage = each.untyped_storage()
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        if self._num_bytes() > self.most:
            gc.collect()  # cycles of the interpreter hold tensors
            self.most = max(self.most, self._num_bytes())
        return out

    def _num_bytes(self) -> int:
        self._live = {key: (ref, size) for key, (ref, size) in self._live.items() if not ref.expired()}
        return sum(size for _, size in self._live.values())


@pytest.fixture
def storages(monkeypatch) -> Iterator[LiveStorages]:
    found, run = LiveStorages(), GridExecutor.__call__

    def run_paused(self: Any, *args: Any, **kwargs: Any) -> None:
        found.is_paused = True
        run(self, *args, **kwargs)
        found.is_paused = False

    monkeypatch.setattr(GridExecutor, "__call__", run_paused)
    gc.collect()
    gc.freeze()  # collections look at new objects alone
    yield found
    gc.unfreeze()


@pytest.mark.interpreted
@FUSE
@pytest.mark.parametrize("name", ["llama", "qwen3_5", *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_the_largest_step_takes_what_was_planned(name: str, fuse: bool, place: str, storages):
    model, options = make_toy(name).draw(), LoweringOptions(dtype="f32", fuse=fuse, captures=False)
    program = CudaDevice(place).lower(model.graph, model.weights, LIMITS, options)
    with storages:
        for batch in largest_steps(LIMITS):
            program.launch(batch).result()
    predicted = base.step_bytes(FACTS, model.graph, model.weights, LIMITS, options)
    has_experts = name == "mixtral"
    assert storages.most <= (LISTS if has_experts else 1) * predicted and predicted <= SLACK * storages.most
    assert fuse or has_experts or predicted == storages.most
