"""A device's facts agree with what its lowering accepts, and are known without opening it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.config import BadSetting, settings
from quire.devices import base, facts
from quire.devices.facts import DeviceUnavailable, MemoryKind, available, device_facts, host_device, resolve_device
from quire.graph.weight import Weight
from quire.models.draw import DrawnModel
from quire.ops.registry import relative_error
from quire.quant.int4 import Int4
from quire.quant.registry import all_formats
from quire.types.formats import CONVERSIONS, KV_FORMATS
from quire.weights.quantized_tensors import GroupedInt4
from tests.devices.cpu.programs import LIMITS, lower, quantized_model, session
from tests.models.toys import Session
from tests.ops.encoded_tensor import EncodedTensor

EVERY_DEVICE = pytest.mark.parametrize("name", available())
CPU = device_facts("cpu")
TEXT = {"a": [5, 6, 7, 8, 9]}
# Bytes of zeros and ones in formats that are read and never written.
ONES = {
    **{f"{kind}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
    **{"bool": "?", "f64": "<f8", "f8_e5m2": "u1", "f8_e8m0": "u1"},
}
ONE = {"f8_e5m2": 0x3C, "f8_e8m0": 0x7F}


def model_in(format: str) -> DrawnModel:
    """A model with matrices in this format: one, if it is a format that is not written."""
    if format in {*all_formats()} - {*ONES}:
        return quantized_model(format)
    model = quantized_model("f16")
    name = next(name for name in model.weights if "mlp.up" in name)
    shape, rng = model.weights[name].shape, np.random.default_rng(0)
    if format == "int4":
        packed, scales = rng.integers(0, 256, (shape[0], shape[1] // 2), np.uint8), np.full((shape[0], 1), 0.01, "f4")
        tensor: Any = GroupedInt4(name, shape, shape[1], lambda: Int4(packed, scales, 8 * scales))
    else:
        values = (rng.integers(0, 2, shape) * ONE.get(format, 1)).astype(ONES[format])
        tensor = EncodedTensor(name, shape, format, values.reshape(-1).view(np.uint8))
    return replace(model, weights={**model.weights, name: Weight(name, shape, format, tensor)})


@pytest.mark.pure
@EVERY_DEVICE
def test_every_device_declares_its_facts_in_known_formats(name: str):
    found = device_facts(name)
    assert found.name == name and set(found.kv_formats) <= set(KV_FORMATS) and found.kv_formats
    assert set(found.conversions) <= set(CONVERSIONS)
    assert set(found.weight_formats) == {*all_formats(), "int4"}
    assert set(found.weight_formats.values()) <= set(found.weight_formats)


@pytest.mark.pure
@EVERY_DEVICE
def test_a_device_that_moves_blocks_has_programs_with_a_block_layout(name: str):
    folder = Path(facts.__file__).parent / name
    has_layout = any("def block_layout" in file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    assert device_facts(name).moves_blocks == has_layout


@pytest.mark.device
@EVERY_DEVICE
def test_an_open_device_adds_the_size_of_its_memory_and_its_default_kv_format(name: str):
    if not device_facts(name).is_present:
        pytest.skip(f"{name} is not here")
    found, static = base.open(name).facts(), device_facts(name)
    assert replace(found, memory=static.memory, kv_formats=static.kv_formats) == static
    assert sorted(found.kv_formats) == sorted(static.kv_formats)
    assert found.memory.kind is static.memory.kind and (found.memory.total_bytes or 0) > 1 << 28


@pytest.mark.pure
def test_facts_import_neither_torch_nor_numpy():
    script = (
        "import sys; from quire.devices.facts import available, resolve_device, device_facts; resolve_device('auto')\n"
        "for name in available(): device_facts(name)\n"
        "print({'torch', 'triton', 'numpy'} & set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


@pytest.mark.pure
def test_the_memory_of_a_step_is_planned_without_torch_for_every_device():
    script = (
        "import sys; from importlib import import_module; from quire.devices.facts import available\n"
        "for name in available(): assert callable(import_module(f'quire.devices.{name}.plan').PLAN)\n"
        "print({'torch', 'triton'} & set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "set()\n"
    )


@pytest.mark.pure
@pytest.mark.parametrize("name", ["cpu", "cuda", "nonsense"])
def test_a_device_name_other_than_auto_is_kept(name: str):
    assert resolve_device(name) == name


@pytest.mark.pure
@pytest.mark.parametrize(
    "missing, has_driver, expected",
    [((), True, "cuda"), (("triton",), True, "cpu"), (("torch",), True, "cpu"), ((), False, "cpu")],
)
def test_auto_is_a_gpu_if_its_driver_and_packages_are_present(missing, has_driver, expected, tmp_path, monkeypatch):
    cuda = replace(device_facts("cuda"), driver=tmp_path if has_driver else tmp_path / "absent")
    monkeypatch.setattr("quire.devices.cuda.FACTS", cuda)
    monkeypatch.setattr(facts, "find_spec", lambda name: None if name in missing else object())
    assert resolve_device("auto") == expected and host_device() == "cpu"


@pytest.mark.device
@pytest.mark.parametrize("kv_format", CPU.kv_formats)
def test_each_kv_format_of_the_cpu_runs(kv_format: str):
    model = quantized_model("f16")
    logits = session(lower(model, replace(LIMITS, kv_dtype=kv_format)), model).step(TEXT)["a"]
    assert relative_error(logits, Session(model).step(TEXT)["a"]) < 0.05


@pytest.mark.device
@pytest.mark.parametrize("format", sorted(CPU.weight_formats))
def test_each_weight_format_of_the_cpu_runs(format: str):
    model = model_in(format)
    logits = session(lower(model, replace(LIMITS, kv_dtype="f32")), model).step(TEXT)["a"]
    assert relative_error(logits, Session(model).step(TEXT)["a"]) < 0.1


@pytest.mark.pure
@EVERY_DEVICE
def test_a_kv_format_that_a_device_does_not_have_is_refused_with_those_that_it_has(name: str):
    found = device_facts(name)
    for each in {*KV_FORMATS} - {*found.kv_formats}:
        with pytest.raises(BadSetting, match=f"kv_dtype is '{each}', which the device '{name}' does not have") as said:
            found.kv_format(each)
        assert all(format in said.value.public for format in found.kv_formats)
    assert found.kv_format("auto") == found.kv_formats[0]


@pytest.mark.device
def test_a_lowering_refuses_what_is_not_in_the_facts():
    model = quantized_model("f16")
    with pytest.raises(BadSetting, match=r"'f8_e4m3'.*It has f16, f32, bf16, q8_0; the nearest in size is q8_0"):
        lower(model, replace(LIMITS, kv_dtype="f8_e4m3"))
    with pytest.raises(BadSetting, match=r"kv_dtype is 'q3', which the device 'cpu' does not have"):
        lower(model, replace(LIMITS, kv_dtype="q3"))
    with pytest.raises(BadSetting, match=r"quantize is 'fp8', which the device 'cpu'.*Run on cuda"):
        lower(model, quantize="fp8")
    name, weight = next(iter(model.weights.items()))
    strange = replace(model, weights={**model.weights, name: replace(weight, format="q1_x")})
    with pytest.raises(DeviceUnavailable, match=rf"The weight {re.escape(name)} is in the format 'q1_x'.*bf16.*q8_0"):
        lower(strange)


@pytest.mark.pure
def test_the_next_smaller_kv_format_is_the_largest_below():
    smaller = {name: [device_facts(name).smaller_kv_format(each) for each in KV_FORMATS] for name in ("cpu", "cuda")}
    assert smaller == {
        "cpu": ["f16", "q8_0", "q8_0", None, None],
        "cuda": ["bf16", "f8_e4m3", "f8_e4m3", "f8_e4m3", None],
    }


@pytest.mark.pure
def test_the_help_of_kv_dtype_agrees_with_the_facts():
    (setting,) = (each for each in settings() if each.name == "kv_dtype")
    words: dict[MemoryKind, str] = {MemoryKind.HOST: "on a CPU", MemoryKind.OWN: "on a GPU"}
    for found in map(device_facts, available()):
        where = words[found.memory.kind]
        assert f"{found.kv_formats[0]} {where}" in setting.help
        for name, each in KV_FORMATS.items():
            assert (name in found.kv_formats) == (where in each.help or not each.help)


def test_experts_can_be_in_host_memory_only_beside_a_device_with_its_own():
    cuda, cpu = device_facts("cuda"), device_facts("cpu")
    assert [cuda.expert_bytes_on_host(value) for value in ("auto", "off", "1.5")] == [None, 0, 1_500_000_000]
    assert [cpu.expert_bytes_on_host(value) for value in ("auto", "off", "0")] == [0, 0, 0]
    with pytest.raises(BadSetting, match=r"computes in host memory.*Leave it out") as caught:
        cpu.expert_bytes_on_host("8")
    assert caught.value.field == "experts_on_host"


def test_stacks_that_a_gpu_packs_take_the_bytes_of_the_format_in_its_facts():
    packing = pytest.importorskip("quire.devices._triton.packing")
    stack_formats = device_facts("cuda").stack_formats
    assert set(stack_formats) == {name.removesuffix("_128") for name in packing.PACKED}
    for name, resident in stack_formats.items():
        if name != "int4":
            taken = packing.PACKED[name].num_bytes(64, 2048) / all_formats()[resident].bytes_for(64 * 2048)
            assert 0.99 < taken < 1.04, name


@pytest.mark.pure
def test_states_are_stored_after_any_token_or_after_whole_chunks_of_a_scan():
    assert [device_facts("cpu").checkpoint_grain(each) for each in (False, True)] == [1, 1]
    assert [device_facts("cuda").checkpoint_grain(each) for each in (False, True)] == [64, 1]
