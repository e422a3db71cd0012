"""The contract of every architecture: a two-layer toy of it runs in the interpreter and on every device."""

from __future__ import annotations

import ast
import inspect
import sys

import numpy as np
import pytest

from quire.devices import base
from quire.devices.facts import DeviceUnavailable, available, device_facts
from quire.graph.interpret import Interpreter
from quire.models.draw import draw
from quire.models.registry import Architecture, all_architectures
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from tests.models.toys import LLAMA_LIKE, random_checkpoint

ARCHITECTURES = pytest.mark.parametrize(
    "arch", [arch for arch in all_architectures() if arch.name in LLAMA_LIKE], ids=lambda arch: arch.name
)
LIMITS = base.Limits(max_tokens=32, max_rows=4, max_logits=32, max_blocks=4, num_blocks=8, kv_dtype="f32")
STEP = Batch.of([RowPart([5, 1, 4, 99, 7], 0, [3, 1], num_logits=5), RowPart([9], 0, [6])], LIMITS.block_tokens)


def devices_that_run_here() -> list[base.Device]:
    found = []
    for name in available():
        if not device_facts(name).is_present:
            continue
        try:
            found.append(base.open(name))
        except DeviceUnavailable:
            continue
    return found


@pytest.mark.pure
@ARCHITECTURES
def test_a_toy_of_every_architecture_runs_in_the_interpreter(arch: Architecture):
    outputs = []
    for container in ("safetensors", "gguf") if arch.gguf else ("safetensors",):
        model = draw(random_checkpoint(arch, container))
        logits = Interpreter(model.graph, model.weights, LIMITS.num_blocks, LIMITS.block_tokens).run(STEP)
        assert logits.shape == (6, model.config.vocab_size) and np.isfinite(logits).all()
        outputs.append(logits)
    assert all(len(np.unique(row)) > 50 for row in outputs[0])


@pytest.mark.device
@pytest.mark.parametrize("device", devices_that_run_here(), ids=lambda device: device.name)
@ARCHITECTURES
def test_a_toy_of_every_architecture_runs_on_every_device(arch: Architecture, device: base.Device):
    model = draw(random_checkpoint(arch, "safetensors"))
    expected = Interpreter(model.graph, model.weights, LIMITS.num_blocks, LIMITS.block_tokens).run(STEP)
    options = base.LoweringOptions(dtype="f32")
    actual = device.lower(model.graph, model.weights, LIMITS, options).launch(STEP).result().logits
    assert relative_error(actual, expected) < 1e-3


@pytest.mark.pure
@ARCHITECTURES
def test_an_architecture_is_a_declaration(arch: Architecture):
    """No arithmetic, and no loop but the one over layers: devices lower it, nothing runs it."""
    tree = ast.parse(inspect.getsource(sys.modules[arch.draw.__module__]))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    assert len(loops) <= 1
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.BinOp)]


@pytest.mark.pure
def test_an_unknown_device_is_refused_with_the_known_ones():
    with pytest.raises(DeviceUnavailable, match=r"no device 'abacus'\. Installed are: "):
        base.open("abacus")
    assert "base" not in available()


@pytest.mark.pure
def test_a_device_folder_without_a_device_is_refused(tmp_path, monkeypatch):
    import quire.devices

    (tmp_path / "toaster").mkdir()
    (tmp_path / "toaster" / "__init__.py").write_text('"""Warm."""\n')
    monkeypatch.setattr(quire.devices, "__path__", [*quire.devices.__path__, str(tmp_path)])
    assert "toaster" in available()
    with pytest.raises(DeviceUnavailable, match="'toaster' cannot run models"):
        base.open("toaster")
