"""Number formats of a GPU, compared on a toy model and few tokens; interpreted without a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.devices.interpreted import place, whole_interpreter  # isort: skip  (before kernels are imported)

from quire.bench.accuracy.cpu_accuracy import sample_windows
from quire.bench.accuracy.divergence import WINDOW
from quire.bench.gpu_accuracy import FORMATS, WAYS, compare_formats
from quire.devices.cuda.device import CudaDevice
from quire.devices.facts import DeviceUnavailable
from quire.models.draw import DrawnModel, draw
from tests.devices.cuda.models import in_format, random_llama
from tests.models.toys import VOCAB
from tests.runner.stand_in import InterpreterDevice

__all__ = ["place", "whole_interpreter"]

NUM_WINDOWS, LENGTH = 2, 12


def toy() -> DrawnModel:
    """All matrices of its layers in q4_1."""
    model = draw(random_llama(128, num_layers=1, vocab=VOCAB))
    weights = {
        name: in_format(weight, "q4_1", seed) if len(weight.shape) == 2 and "." in name else weight
        for seed, (name, weight) in enumerate(model.weights.items())
    }
    return replace(model, weights=weights)


@pytest.mark.device
@pytest.mark.slow
def test_every_format_is_measured_in_prompts_and_in_decoding(place):
    windows = np.random.default_rng(0).integers(0, VOCAB, (NUM_WINDOWS, LENGTH)).astype(np.int32)
    lines = list(compare_formats(toy(), CudaDevice(place), windows))
    assert [(line["numbers"], line["way"]) for line in lines] == [(name, way) for name in FORMATS for way in WAYS]
    assert {line["num_positions"] for line in lines} == {NUM_WINDOWS * (LENGTH // 2 - 1)}
    head, layer = 128 * VOCAB, 128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 256
    short, whole = {"bfloat16": head}, {"bfloat16": head + layer}
    fp8, int4 = {"float8_e4m3fn": layer, **short}, {"int4": layer, **short}
    formats = [line["formats"] for line in lines if line["way"] == "decode"]
    assert formats == [{"float32": head + layer}, whole, fp8, int4, whole, fp8]
    by_key = {(line["numbers"], line["way"]): line for line in lines}
    assert by_key["f32", "prompt"]["kl_f32"] == pytest.approx(0, abs=1e-7)
    assert by_key["f32", "prompt"]["same_f32"] == 1.0 and by_key["bf16", "prompt"]["same_bf16"] == 1.0
    for way in WAYS:
        kl = {name: by_key[name, way]["kl_f32"] for name in FORMATS}
        assert kl["f32"] < 1e-6 < kl["bf16"] < min(kl["fp8"], kl["bf16, KV f8_e4m3"]) and max(kl.values()) < 0.5
        assert kl["as stored"] < kl["fp8"]
        assert by_key["fp8", way]["kl_bf16"] > 0 and 0 <= by_key["fp8", way]["same_f32"] <= 1


@pytest.mark.device
def test_a_device_without_a_choice_of_formats_is_refused():
    with pytest.raises(DeviceUnavailable, match="no choice"):
        next(compare_formats(toy(), InterpreterDevice(), np.zeros((1, LENGTH), np.int32)))


@pytest.mark.e2e
def test_the_text_makes_more_windows_than_are_asked_for(model_file):
    windows = sample_windows(str(model_file))
    assert windows.dtype == np.int32 and windows.shape[1] == WINDOW and len(windows) > 20
