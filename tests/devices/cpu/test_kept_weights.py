"""A second lowering uses the cached panels of the first: no weight is read or packed, and every bit is the same."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys

import numpy as np
import pytest

from quire.devices import cpu
from quire.devices.cpu import pack
from quire.devices.cpu.variant_choice import KEY
from quire.weights.lowered import LoweredModel, LoweredStore
from tests.devices.cpu.programs import HAS_NATIVE, VARIANTS, lower, quantized_model, session
from tests.models.toys import some_tokens

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]


@pytest.fixture
def kept(tmp_path) -> LoweredModel:
    return LoweredStore(tmp_path / "lowered", 1 << 30, min_bytes=0).for_model("toy")


def logits(program, model) -> np.ndarray:
    texts = session(program, model)
    return np.concatenate([texts.step({"a": some_tokens(40)})["a"], texts.step({"a": [3]})["a"]])


@pytest.mark.parametrize("precision", ["native", "float"])
@pytest.mark.parametrize("fmt", sorted((*cpu.QUANTIZED, "f16", "bf16")))
def test_logits_over_mapped_weights_are_bit_equal(fmt, precision, kept, monkeypatch):
    model = quantized_model(fmt)
    expected = logits(lower(model, precision=precision), model)
    first = logits(lower(model, kept=kept, precision=precision), model)
    kept.wait()
    monkeypatch.setattr(pack, "packed_rows", None)  # packing again would fail
    second = logits(lower(model, kept=kept, precision=precision), model)
    assert np.array_equal(first, expected) and np.array_equal(second, expected)


def test_mapped_weights_take_no_memory_of_the_program(kept):
    model = quantized_model("q4_1")
    first = lower(model, kept=kept)
    kept.wait()
    second = lower(model, kept=kept)
    found = kept.find(next_recipe(kept)) or {}
    panels = sum(array.nbytes for name, array in found.items() if name != KEY)
    assert panels > 0 and second.num_bytes == first.num_bytes - panels


def next_recipe(kept: LoweredModel) -> str:
    """Return the recipe of the only cached file."""
    recipes: list[str] = []

    class RecordingCache:
        def find(self, recipe: str) -> None:
            recipes.append(recipe)

        def keep(self, recipe: str, arrays: object) -> None:
            pass

    lower(quantized_model("q4_1"), kept=RecordingCache())
    assert kept.path(recipes[0]).is_file()
    return recipes[0]


def test_all_variants_share_the_panels_of_a_precision(kept):
    model = quantized_model("q4_1")
    for variant in VARIANTS:
        for precision in ("native", "float"):
            expected = logits(lower(model, variant=variant, precision=precision), model)
            assert np.array_equal(
                logits(lower(model, kept=kept, variant=variant, precision=precision), model), expected
            )
            kept.wait()
    assert len(list(kept.store.folder.iterdir())) == 2


def test_a_program_keeps_its_mapped_weights_alive(kept):
    model = quantized_model("q4_1")
    expected = logits(lower(model, kept=kept), model)
    kept.wait()
    program = lower(model, kept=kept)
    for path in kept.store.folder.iterdir():
        path.unlink()
    gc.collect()
    assert np.array_equal(logits(program, model), expected)


class GuardedCache:
    """Stores each array directly before unreadable memory: a read beyond its end crashes."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def find(self, recipe: str) -> dict[str, np.ndarray]:
        return self.arrays

    def keep(self, recipe: str, arrays: dict[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            if name == KEY:
                continue
            assert array.nbytes % 64 == 0
            size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            memory = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(memory.ctypes.data + size), mmap.PAGESIZE, 0) == 0
            memory[size - array.nbytes : size] = array
            self.arrays[name] = memory[size - array.nbytes : size]


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fmt", sorted((*cpu.QUANTIZED, *cpu.FLOATS)))
def test_no_kernel_reads_beyond_the_last_panel(fmt, variant):
    model, kept = quantized_model(fmt), GuardedCache()
    expected = logits(lower(model, kept=kept, variant=variant), model)
    assert np.array_equal(logits(lower(model, kept=kept, variant=variant), model), expected)


def test_panels_of_the_wrong_size_are_refused():
    program = lower(quantized_model("q4_1")).native
    panels = np.zeros(64 * 20, np.uint8)
    for shape in ((8, 33), (0, 32), (16, 32)):
        with pytest.raises(ValueError):
            program.adopt("q8_0", shape, panels)
    with pytest.raises(ValueError):
        program.adopt("q9", (8, 32), panels)
