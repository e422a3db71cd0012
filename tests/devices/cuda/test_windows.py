"""Window groups: layers with a window have blocks of their own, few of them, and the same bits as without groups.

Caches are full of NaN before they are written: what is behind a window is not read, not even to be multiplied by 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quire.devices.base import Limits, LoweringOptions, WindowLimits
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.few_rows import HOPPER
from quire.devices.cuda.program import CudaProgram
from quire.graph.graph import Graph
from quire.graph.weight import Weights
from quire.ops.batch import Batch
from quire.ops.cache import Latent, PagedKV, State
from tests.devices.cpu.window_texts import (
    UNDEFINED,
    WindowTexts,
    logits_after_copied_heads,
    odd,
    some_words,
    with_windows,
)
from tests.devices.cuda.few_rows_toys import property_toy
from tests.devices.cuda.models import small
from tests.devices.interpreted import on_gpu
from tests.models.toys import BLOCK, make_toy, some_tokens

pytestmark = pytest.mark.device

PLAIN = Limits(max_tokens=256, max_rows=8, max_logits=256, max_blocks=20, num_blocks=60, kv_dtype="f32")
CHUNK = 16
TEXTS = {name: some_tokens(count) for name, count in (("a", 65), ("b", 20))}  # the last step has one token
TOYS = [("gpt_oss", False)]  # and whether they are fused
MORE = [
    # windows, sinks, chunks, shared caches, norms after blocks, softcaps
    *(("gemma3", True), ("gemma4", True), ("mistral-window", False)),
    *(("cohere2", True), ("gpt_oss", True), ("gemma2", True), ("mistral-window", True), ("olmo3", True)),
    *(("exaone_moe-listed", True), ("gemma3", False), ("gemma4", False), ("cohere2", False), ("llama4", True)),
]


def lower(graph: Graph, weights: Weights, limits: Limits, place: str, **wishes: Any) -> CudaProgram:
    """A program whose caches are full of NaN. Steps are captured only if wished for."""
    wishes = {"dtype": "f32", "captures": False, **wishes}
    program = CudaDevice(place).lower(graph, weights, limits, LoweringOptions(**wishes))
    for layer, spec in enumerate(graph.caches):
        if isinstance(spec, PagedKV):
            for each in program.caches.of(layer):
                each.fill_(torch.nan)
        elif isinstance(spec, Latent):
            program.caches.latents_of(layer).fill_(torch.nan)
    return program


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "name, fuse", [*TOYS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MORE)], ids=str
)
def test_an_architecture_has_the_same_bits_with_window_groups(name: str, fuse: bool, place: str):
    """Table entries behind the windows are out of range, and their blocks are reused."""
    model = make_toy(name).draw()
    limits = with_windows(PLAIN, model.graph, CHUNK, len(TEXTS))
    expected = WindowTexts(lower(model.graph, model.weights, PLAIN, place, fuse=fuse), PLAIN).write(TEXTS, CHUNK)
    texts = WindowTexts(lower(model.graph, model.weights, limits, place, fuse=fuse), limits)
    found = texts.write(TEXTS, CHUNK)
    assert all(np.isfinite(found[each]).all() and np.array_equal(found[each], expected[each]) for each in TEXTS)
    (window,) = limits.windows
    if window.window < 2 * BLOCK:
        assert texts.pools[1].num_taken > window.num_blocks, "no block was used twice"
        assert texts.tables["a"][1][0] == UNDEFINED


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["gemma3", *(pytest.param(each, marks=pytest.mark.slow) for each in ("gpt_oss",))])
def test_logits_are_those_of_transformers_with_window_groups(name: str, place: str):
    model, tokens = make_toy(name).draw(), some_tokens(40)
    limits = with_windows(PLAIN, model.graph, 9, 1)
    found = WindowTexts(lower(model.graph, model.weights, limits, place), limits).write({"a": tokens}, 9)["a"]
    expected = make_toy(name).expected_logits(tokens)
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("kv_dtype", ["f32", *on_gpu("bf16", "f8_e4m3")])
@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_two_windows_a_shared_cache_and_a_latent_one_in_one_graph(kv_dtype: str, deterministic: bool, place: str):
    sketch, prompts = odd(), {"a": some_words(75), "b": some_words(20)}
    plain = replace(PLAIN, kv_dtype=kv_dtype)
    limits = replace(plain, windows=with_windows(PLAIN, sketch.graph, 30, 2).windows[:2])  # that of 150 has none
    assert [each.window for each in limits.windows] == [5, 40]
    wishes = {"deterministic": deterministic}
    expected = WindowTexts(lower(sketch.graph, sketch.weights, plain, place, **wishes), plain).write(prompts, 30)
    found = WindowTexts(lower(sketch.graph, sketch.weights, limits, place, **wishes), limits).write(prompts, 30)
    assert all(np.array_equal(found[each], expected[each]) for each in prompts)


@pytest.mark.parametrize("name", ["qwen2-windows", *on_gpu("mistral-window")])
def test_in_deterministic_mode_chunks_change_no_bit(name: str, place: str):
    """A fixed chunk of keys begins before the window: blocks that are not there are not read."""
    model, found = small(name).draw(), []
    prompts = {"a": some_tokens(45), "b": some_tokens(38)}
    for chunk in (45, 8):
        limits = with_windows(PLAIN, model.graph, chunk, 2)
        texts = WindowTexts(lower(model.graph, model.weights, limits, place, deterministic=True), limits)
        found.append(texts.write(prompts, chunk))
    assert all(np.array_equal(found[0][each], found[1][each]) for each in prompts)


def test_blocks_of_each_group_are_copied_by_its_own_list(place: str):
    sketch, prompt, rest = odd(), some_words(48), some_words(12)
    limits = with_windows(PLAIN, sketch.graph, 48, 4)
    program = lower(sketch.graph, sketch.weights, limits, place, deterministic=True)
    found, expected = logits_after_copied_heads(program, limits, prompt, rest)
    assert np.array_equal(found, expected)


@pytest.mark.slow
def test_rows_that_share_blocks_of_all_tokens_may_have_other_blocks_in_windows(place: str):
    """Twelve rows share 12 blocks, enough that these are read once; the hint does not say so of windows."""
    sketch, prefix = odd(), some_words(12 * BLOCK)
    tails = {f"t{n}": some_words(2 + n) for n in range(12)}
    limits = replace(
        PLAIN, max_rows=16, num_blocks=200, windows=tuple(WindowLimits(window, 170) for window in (5, 40, 150))
    )
    program = lower(sketch.graph, sketch.weights, limits, place)
    texts = WindowTexts(program, limits)
    texts.write({"prefix": prefix}, 64)
    for n, name in enumerate(tails):
        texts.fork("prefix", name)
        if n % 2:  # the same numbers in other blocks
            for group, (pool, table) in enumerate(zip(texts.pools, texts.tables[name], strict=True)):
                if group:
                    held = [at for at, block in enumerate(table) if block != UNDEFINED]
                    moved = np.array([[table[at], pool.take(), BLOCK] for at in held], np.int32)
                    program.caches.copy(moved, group)
                    for at, (_, block, _) in zip(held, moved.tolist(), strict=True):
                        table[at] = block
    texts.step({name: tail[:1] for name, tail in tails.items()})
    plain = texts.step({name: tail[1:2] for name, tail in tails.items()})
    for name in tails:
        texts.computed[name] -= 1
    shared = texts.step({name: tail[1:2] for name, tail in tails.items()}, num_shared=12)
    assert any(not np.array_equal(plain[name], shared[name]) for name in tails), "the hint was not used at all"
    for name in tails:
        assert np.abs(shared[name] - plain[name]).max() <= 1e-4 * np.abs(plain[name]).max()


def test_a_step_with_other_groups_than_the_program_is_refused(place: str):
    sketch = odd()
    limits = replace(PLAIN, windows=(WindowLimits(5, 6),))
    program = lower(sketch.graph, sketch.weights, limits, place)
    batch = Batch.of([WindowTexts(program, PLAIN).part("a", some_words(3))], BLOCK)
    with pytest.raises(ValueError, match="the step has 0 window groups, and the program 1"):
        program.launch(batch)


def test_each_group_has_its_own_blocks_and_its_own_slot_for_padding():
    whole, part = PagedKV(2, 16, 16), PagedKV(2, 16, 16, window=40)
    specs, windows = [whole, part, State((3,)), part, Latent(8, 8)], (WindowLimits(40, 4),)
    caches = Caches(specs, BLOCK, torch.float32, torch.device("cpu"), 9, num_states=2, windows=windows)
    assert [caches.group_of(layer) for layer in (0, 1, 3, 4)] == [0, 1, 1, 0]
    assert [len(caches.of(layer)[0]) for layer in (0, 1, 3)] == [10, 5, 5]
    assert caches.trash_slots == [9 * BLOCK, 4 * BLOCK]
    per_block = BLOCK * 4
    assert caches.block_bytes == per_block * (64 + 16)
    assert caches.num_bytes == 10 * caches.block_bytes + 5 * per_block * 2 * 64
    kept = caches.of(3)[0]
    caches.resize(20)
    assert caches.trash_slots == [20 * BLOCK, 4 * BLOCK]
    assert len(caches.of(0)[0]) == 21 and caches.of(3)[0] is kept, "a window group keeps its blocks"
    assert caches.both_of(1) is caches.both_of(3) is not caches.both_of(0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name, deterministic", [("gemma3", False), ("gpt_oss", False), ("gpt_oss", True), ("llama4", False)]
)
def test_captured_steps_read_the_tables_of_the_step(name: str, deterministic: bool, place: str):
    """Five rows decode, padded to six, over enough tokens that their blocks change."""
    model, results = make_toy(name).draw(), []
    prompts = {str(row): some_tokens(70 + 9 * row) for row in range(5)}
    for captures, has_groups in ((False, False), (True, False), (True, True)):
        limits = replace(PLAIN, num_blocks=100, max_logits=600, max_tokens=600)
        limits = with_windows(limits, model.graph, 128, 5) if has_groups else limits
        wishes = {"captures": captures, "deterministic": deterministic}
        program = lower(model.graph, model.weights, limits, place, **wishes)
        texts = WindowTexts(program, limits)
        texts.write(prompts, 128)
        results.append([texts.step({row: [step] for row in prompts}) for step in range(40)])
        assert captures == (program.num_padded > 0)
    for launched, captured, grouped in zip(*results, strict=True):
        assert all(np.array_equal(captured[row], grouped[row]) for row in prompts)
        assert not deterministic or all(np.array_equal(launched[row], captured[row]) for row in prompts)


@pytest.mark.gpu
@pytest.mark.parametrize("captures", [False, True])
@pytest.mark.parametrize("quantize", [None, "fp8"])
@pytest.mark.parametrize(
    "name",
    ["a window", "layers with and without a window", "two ropes, norms after blocks, heads of 256"],
)
def test_one_kernel_for_few_rows_has_the_same_bits_with_window_groups(
    name: str, quantize: str | None, captures: bool, place: str
):
    if torch.cuda.get_device_capability()[0] != HOPPER:
        pytest.skip("the kernel for a whole step needs Hopper")
    model, results = property_toy(name).draw(), []
    prompts = {str(row): some_tokens(60 + 50 * row) for row in range(3)}
    plain = replace(PLAIN, max_tokens=600, max_logits=600, max_blocks=30, num_blocks=90, kv_dtype="bf16")
    for limits in (plain, with_windows(plain, model.graph, 200, 3)):
        wishes = {"dtype": "bf16", "quantize": quantize, "captures": captures}
        program = lower(model.graph, model.weights, limits, place, **wishes)
        assert program.variants
        texts = WindowTexts(program, limits)
        texts.write(prompts, 200)
        results.append([texts.step({row: [step] for row in prompts}) for step in range(40)])
    for expected, found in zip(*results, strict=True):
        assert all(np.array_equal(expected[row], found[row]) for row in prompts)
        assert all(np.isfinite(expected[row]).all() for row in prompts)
