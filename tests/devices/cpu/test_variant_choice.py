"""The variant of the kernels that computes products is measured and cached, and never changes a bit."""

from __future__ import annotations

import numpy as np
import pytest

from quire.devices.cpu import FLOATS, QUANTIZED, pack, variant_choice
from quire.devices.cpu.bindings import native
from quire.devices.cpu.threads import pool_for
from quire.devices.cpu.variant_choice import VariantChoice
from quire.weights.lowered import LoweredModel, LoweredStore
from tests.devices.cpu.programs import HAS_NATIVE, VARIANTS, lower, quantized_model, session
from tests.models.encoders import make_encoder
from tests.models.toys import some_tokens

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

FORMATS = sorted((*QUANTIZED, *FLOATS))


def alike(fmt: str) -> list[str]:
    """Variants that round this format's products as the widest does."""
    module = native()
    return [name for name in VARIANTS if module.rounding(name, fmt) == module.rounding(VARIANTS[0], fmt)]


def logits(program, model) -> np.ndarray:
    texts = session(program, model)
    prompt = texts.step({"a": some_tokens(40)})["a"]
    return np.concatenate([prompt, texts.step({"a": [3]})["a"], texts.step({"a": some_tokens(7)})["a"]])


@pytest.fixture
def kept(tmp_path) -> LoweredModel:
    return LoweredStore(tmp_path / "lowered", 1 << 30, min_bytes=0).for_model("toy")


class Stopwatch:
    """Replaces measured times by `seconds(variant, num_tokens)`, and counts the measurements."""

    def __init__(self, monkeypatch, seconds) -> None:
        self.num_measured = 0

        def measured(probe, variant: str, num_tokens: int) -> float:
            self.num_measured += 1
            probe._native.multiply_with(probe._format, variant)
            return seconds(variant, num_tokens)

        monkeypatch.setattr(variant_choice.ProductProbe, "seconds", measured)
        monkeypatch.setattr(variant_choice, "MIN_BYTES", 0)


@pytest.mark.parametrize("fmt", FORMATS)
def test_products_of_variants_that_round_alike_have_the_same_bits(fmt):
    model = quantized_model(fmt)
    program = lower(model, variant=VARIANTS[0])
    expected = logits(program, model)
    for name in alike(fmt):
        program.multiply_with({fmt: VariantChoice(name, {})})
        assert np.array_equal(logits(program, model), expected), name


def test_a_variant_that_rounds_differently_is_refused():
    program = lower(quantized_model("q4_1"), variant="baseline")
    others = [name for name in VARIANTS if native().rounding(name, "q4_1") != native().rounding("baseline", "q4_1")]
    for name in others:
        with pytest.raises(ValueError, match="rounds"):
            program.native.multiply_with("q4_1", name)
    assert others or VARIANTS == ["baseline"]


def test_real_measurements_choose_a_variant_for_every_format_that_is_multiplied(monkeypatch):
    monkeypatch.setattr(variant_choice, "MIN_BYTES", 0)
    program = lower(quantized_model("q4_1"))
    assert set(program.kernels) == {"q4_1", "q8_0", "q4_0"}
    for fmt, times in program.kernels.items():
        assert set(times) == set(alike(fmt)) and next(iter(times.values())) == 1.0
        assert all(relative > 0 for relative in times.values())


@pytest.mark.skipif(len(VARIANTS) < 3, reason="needs two variants that round alike")
def test_a_narrower_variant_is_chosen_where_it_is_faster(monkeypatch):
    narrow = alike("q4_1")[-1]
    Stopwatch(monkeypatch, lambda variant, num_tokens: 1.0 if variant == narrow else 2.0)
    model = quantized_model("q4_1")
    program = lower(model)
    assert program.kernels["q4_1"] == {name: 1.0 if name == narrow else 2.0 for name in (narrow, *alike("q4_1"))}
    assert next(iter(program.kernels["q4_1"])) == narrow
    assert np.array_equal(logits(program, model), logits(lower(model, variant=VARIANTS[0]), model))


@pytest.mark.skipif(len(VARIANTS) < 3, reason="needs two variants that round alike")
@pytest.mark.parametrize("with_one, with_prompt, is_chosen", [(0.7, 1.2, True), (0.9, 1.2, False), (1.2, 0.7, True)])
def test_one_token_and_a_prompt_count_alike(monkeypatch, with_one: float, with_prompt: float, is_chosen: bool):
    narrow = alike("q4_1")[-1]
    relative = {1: with_one, 4: 1.0, 64: with_prompt}
    Stopwatch(monkeypatch, lambda variant, num_tokens: relative[num_tokens] if variant == narrow else 1.0)
    program = lower(quantized_model("q4_1"))
    assert (next(iter(program.kernels["q4_1"])) == narrow) is is_chosen


@pytest.mark.parametrize("weights", [variant_choice.TOKEN_WEIGHTS, variant_choice.WHOLE_TEXT_WEIGHTS])
def test_weights_of_the_numbers_of_tokens_add_up_to_one(weights):
    assert sum(weights.values()) == pytest.approx(1)


def test_a_model_without_logits_is_measured_with_whole_texts(monkeypatch):
    seen = set()
    Stopwatch(monkeypatch, lambda variant, num_tokens: seen.add(num_tokens) or 1.0)
    lower(make_encoder("bert").draw())
    assert seen == (set(variant_choice.WHOLE_TEXT_WEIGHTS) if len(alike("f32")) > 1 else set())


def test_a_choice_for_other_numbers_of_tokens_is_measured_again():
    module, pool = native(), pool_for(native(), None)
    array = variant_choice.to_bytes(module, pool, {"f32": VariantChoice(VARIANTS[0], {})})
    assert variant_choice.from_bytes(module, pool, array, variant_choice.WHOLE_TEXT_WEIGHTS) is None


def test_a_sample_for_many_tokens_is_a_part_of_a_large_matrix(monkeypatch):
    monkeypatch.setattr(variant_choice, "MANY_TOKENS_BYTES", 500)
    large = pack.Packed("q8_0", (20, 32), np.zeros(3 * 272, np.uint8))
    few, many = variant_choice._sample([large], 1), variant_choice._sample([large], 64)
    assert few == [large] and (many[0].shape, many[0].panels.nbytes) == ((8, 32), 272)


@pytest.mark.skipif(len(VARIANTS) < 3, reason="needs two variants that round alike")
@pytest.mark.parametrize("lead", [0.99, "lost"])
def test_the_widest_variant_is_kept_if_another_is_hardly_faster_or_only_at_first(monkeypatch, lead):
    narrow = alike("q4_1")[-1]
    first_rounds = len(alike("q4_1")) * len(variant_choice.TOKEN_WEIGHTS) * variant_choice.NUM_ROUNDS
    seen = {"count": 0}

    def seconds(variant: str, num_tokens: int) -> float:
        seen["count"] += 1
        if lead == "lost":
            is_slowed = variant != narrow and seen["count"] % (4 * first_rounds) < first_rounds
            return 2.0 if is_slowed else 1.0
        return lead if variant == narrow else 1.0

    module = native()
    pool = pool_for(module, None)
    Stopwatch(monkeypatch, seconds)
    widest = VARIANTS[0]
    program = module.Program(widest, pool, [1, 1, 1, 1, 1, 16])
    panels = program.panels(program.matrix("q4_1", 32, np.zeros((8, 20), np.uint8)))
    matrix = pack.Packed("q4_1", (8, 32), panels)
    assert variant_choice.choose_variants(module, pool, widest, [matrix])["q4_1"].variant == widest


def test_a_small_model_is_not_measured():
    program = lower(quantized_model("q4_1"))
    assert program.kernels == {fmt: {VARIANTS[0]: 1.0} for fmt in ("q4_1", "q8_0", "q4_0")}


def test_a_choice_is_cached_with_the_lowered_weights_and_not_measured_again(monkeypatch, kept):
    watch = Stopwatch(monkeypatch, lambda variant, num_tokens: 1.0 + VARIANTS.index(variant))
    model = quantized_model("q4_1")
    first = lower(model, kept=kept)
    kept.wait()
    num_measured = watch.num_measured
    second = lower(model, kept=kept)
    assert (num_measured > 0) == any(len(alike(fmt)) > 1 for fmt in first.kernels), "one variant needs no measurement"
    assert watch.num_measured == num_measured
    assert second.kernels == first.kernels


def test_a_choice_of_another_machine_is_measured_again_and_replaces_it(monkeypatch, kept):
    watch = Stopwatch(monkeypatch, lambda variant, num_tokens: 1.0)
    model = quantized_model("q4_1")
    lower(model, kept=kept)
    kept.wait()
    num_measured = watch.num_measured
    monkeypatch.setattr(variant_choice, "_processor", lambda: iter(["another"]))
    lower(model, kept=kept)
    kept.wait()
    assert watch.num_measured == 2 * num_measured
    lower(model, kept=kept)
    assert watch.num_measured == 2 * num_measured


def test_a_choice_that_cannot_be_read_is_measured_again(caplog):
    module = native()
    pool = pool_for(module, None)
    assert variant_choice.from_bytes(module, pool, np.frombuffer(b"not json", np.uint8)) is None
    assert "measuring again" in caplog.text
    array = variant_choice.to_bytes(module, pool, {"q4_1": VariantChoice("avx2", {"avx2": 1.0})})
    assert variant_choice.from_bytes(module, pool, array) == {"q4_1": VariantChoice("avx2", {"avx2": 1.0})}
    assert variant_choice.from_bytes(module, pool, variant_choice.to_bytes(module, pool, {})) is None
