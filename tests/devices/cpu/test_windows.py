"""Window groups: layers with a window have blocks of their own, few of them, and the same bits as without groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.devices import base
from quire.devices.base import Limits, LoweringOptions, WindowLimits
from quire.devices.cpu import FACTS, device
from quire.devices.cpu.lower import KERNELS
from quire.graph.graph import Graph
from quire.graph.interpret import Interpreter
from quire.graph.weight import Weights
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from tests.devices.cpu.programs import HAS_NATIVE
from tests.devices.cpu.window_texts import (
    UNDEFINED,
    WindowTexts,
    logits_after_copied_heads,
    odd,
    some_words,
    with_windows,
)
from tests.graph.sketch import DIM, HEAD, KV_HEADS, Sketch
from tests.models.toys import BLOCK, make_toy, some_tokens

pytestmark = [pytest.mark.device, pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")]

PLAIN = Limits(max_tokens=256, max_rows=16, max_logits=256, max_blocks=20, num_blocks=100, kv_dtype="f32")
FUSE = pytest.mark.parametrize("fuse", [False, True], ids=["plain", "fused"])
TOYS = ("gemma3", "gpt_oss", "cohere2", "llama4", "gemma4", "mistral-window")  # windows, sinks, chunks, shared caches
TEXTS = {name: some_tokens(count) for name, count in (("a", 230), ("b", 140), ("c", 150))}


def window_limits(graph: Graph, most_new: int, num_texts: int = len(TEXTS)) -> Limits:
    """Groups for all windows of a graph, with no more blocks than so many texts need at once."""
    return with_windows(PLAIN, graph, most_new, num_texts)


def lower(graph: Graph, weights: Weights, limits: Limits, *, fuse: bool = True) -> base.Program:
    return base.open("cpu").lower(graph, weights, limits, LoweringOptions(dtype="f32", fuse=fuse))


def test_the_facts_say_that_windows_are_freed():
    assert FACTS.frees_windows


@pytest.mark.parametrize("name", TOYS)
@FUSE
def test_an_architecture_has_the_same_bits_with_window_groups(name: str, fuse: bool):
    """Chunks of 1, 7 and 64 tokens; table entries behind the windows are out of range, and their blocks are reused."""
    model = make_toy(name).draw()
    expected = WindowTexts(lower(model.graph, model.weights, PLAIN, fuse=fuse), PLAIN).write(TEXTS, 64)
    for chunk in (1, 7, 64):
        limits = window_limits(model.graph, chunk)
        assert limits.windows
        texts = WindowTexts(lower(model.graph, model.weights, limits, fuse=fuse), limits)
        found = texts.write(TEXTS, chunk)
        assert all(np.array_equal(found[each], expected[each]) for each in TEXTS), chunk
        assert texts.pools[1].num_taken > limits.windows[0].num_blocks, "no block was used twice"
        assert all(tables[1][0] == UNDEFINED for tables in texts.tables.values())


@FUSE
@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16"])
def test_two_windows_a_shared_cache_and_a_latent_one_in_one_graph(kv_dtype: str, fuse: bool):
    sketch, prompts = odd(), {"a": some_words(230), "b": some_words(190)}
    plain = replace(PLAIN, kv_dtype=kv_dtype)
    expected = WindowTexts(lower(sketch.graph, sketch.weights, plain, fuse=fuse), plain).write(prompts, 64)
    for chunk in (1, 7, 64):
        limits = replace(window_limits(sketch.graph, chunk), kv_dtype=kv_dtype)
        assert [each.window for each in limits.windows] == [5, 40, 150]
        found = WindowTexts(lower(sketch.graph, sketch.weights, limits, fuse=fuse), limits).write(prompts, chunk)
        assert all(np.array_equal(found[each], expected[each]) for each in prompts), chunk


def test_a_window_without_a_group_keeps_all_tokens():
    sketch, prompts = odd(), {"a": some_words(200)}
    expected = WindowTexts(lower(sketch.graph, sketch.weights, PLAIN), PLAIN).write(prompts, 64)
    limits = replace(PLAIN, windows=(WindowLimits(150, 18), WindowLimits(5, 9)))  # in another order, and 40 has none
    found = WindowTexts(lower(sketch.graph, sketch.weights, limits), limits).write(prompts, 64)
    assert np.array_equal(found["a"], expected["a"])


def test_references_read_no_entry_behind_a_window(monkeypatch: pytest.MonkeyPatch):
    """The interpreter, nodes that fall back to it, and a program without native code."""
    sketch, prompts = odd(), {"a": some_words(200)}
    limits = window_limits(sketch.graph, 64, 1)
    expected = WindowTexts(lower(sketch.graph, sketch.weights, PLAIN), PLAIN).write(prompts, 64)["a"]
    monkeypatch.delitem(KERNELS, "attention")
    programs = [lower(sketch.graph, sketch.weights, limits)]
    assert programs[0].fallback is not None  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "native", lambda: None)
    programs.append(lower(sketch.graph, sketch.weights, limits))
    for program in programs:
        found = WindowTexts(program, limits).write(prompts, 64)["a"]
        assert relative_error(found, expected) < 1e-4


def test_blocks_of_each_group_are_copied_by_its_own_list():
    sketch, prompt, rest = odd(), some_words(60), some_words(30)
    limits = window_limits(sketch.graph, 64, 4)
    program = lower(sketch.graph, sketch.weights, limits)
    found, expected = logits_after_copied_heads(program, limits, prompt, rest)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("sharing", ["the same blocks", "blocks of their own", "some of both"])
@pytest.mark.parametrize("chunk", [1, 3])
def test_rows_of_a_group_have_the_bits_that_they_have_alone(sharing: str, chunk: int):
    """They share 12 blocks of all tokens. Those of windows may be shared or not, and rows have released other ones."""
    sketch, prefix = odd(), some_words(12 * BLOCK)
    tails = {f"t{n}": some_words(1 + 17 * n) for n in range(6)}
    limits = replace(PLAIN, num_blocks=200, windows=tuple(WindowLimits(window, 90) for window in (5, 40, 150)))
    program = lower(sketch.graph, sketch.weights, limits)
    alone = {name: WindowTexts(program, limits).write({name: prefix + tail}, 64) for name, tail in tails.items()}
    texts = WindowTexts(program, limits, seed=chunk)
    texts.write({"prefix": prefix}, 64)
    for n, name in enumerate(tails):
        if sharing == "the same blocks" or (sharing == "some of both" and n % 2):
            texts.fork("prefix", name)
        else:
            texts.write({name: prefix}, 64)
            texts.tables[name][0] = texts.pools[0].share(texts.tables["prefix"][0])
    found: dict[str, list[np.ndarray]] = {name: [] for name in tails}
    while left := {name: tail for name, tail in tails.items() if texts.computed[name] < len(prefix) + len(tail)}:
        done = {name: texts.computed[name] - len(prefix) for name in left}
        chunks = {name: left[name][done[name] : done[name] + chunk + n] for n, name in enumerate(left)}
        for name, logits in texts.step(chunks, num_shared=12).items():
            found[name].append(logits)
    for name in tails:
        assert np.array_equal(np.concatenate(found[name]), alone[name][name][len(prefix) :])


def test_releasing_blocks_leaves_those_of_windows():
    """A graph whose layers all have a window: its blocks of all tokens have no bytes."""
    s = Sketch()
    x, table = s.embed(), s.frequencies()
    q, k, v = s.qkv(s.norm(x))
    x = s.graph.add(x, s.linear(s.attend(s.rope(q, table), s.rope(k, table), v, s.cache(window=300)), DIM))
    s.logits(x)
    prompt = some_words(100)
    limits = replace(PLAIN, windows=(WindowLimits(300, 20),))
    program = lower(s.graph, s.weights, limits)
    expected = WindowTexts(program, limits).write({"a": prompt}, 64)["a"]
    texts = WindowTexts(program, limits)
    first = texts.write({"a": prompt[:60]}, 64)["a"]
    assert program.release_blocks(np.arange(limits.num_blocks, dtype=np.int32)) == 0  # type: ignore[attr-defined]
    found = np.concatenate([first, texts.write({"a": prompt[60:]}, 64)["a"]])
    assert np.array_equal(found, expected)


def test_memory_counts_the_blocks_of_each_group():
    sketch = odd()
    whole = lower(sketch.graph, sketch.weights, PLAIN).num_bytes  # type: ignore[attr-defined]
    limits = replace(PLAIN, windows=(WindowLimits(150, 30), WindowLimits(5, 2)))
    found = lower(sketch.graph, sketch.weights, limits).num_bytes  # type: ignore[attr-defined]
    block_bytes = BLOCK * KV_HEADS * 2 * HEAD * 4
    assert whole - found == block_bytes * (2 * (100 - 30) + (100 - 2))


def step_of(windows: list[list[int]], copies: list[list[int]]) -> Batch:
    batch = Batch.of([RowPart([1] * 3, 45, [3, 4, 5], windows=windows)], BLOCK)
    triples = np.array(copies, np.int32).reshape(-1, 3)
    return replace(batch, windows=tuple(replace(each, copies=triples) for each in batch.windows))


@pytest.mark.parametrize(
    "windows, copies, message",
    [
        ([[UNDEFINED, UNDEFINED, 5]], [], "other groups"),
        ([[UNDEFINED, UNDEFINED, 5], [UNDEFINED, 1, 2]], [], "there is no such block"),  # 45 reads from 6 on
        ([[UNDEFINED, UNDEFINED, 6], [7, 1, 2]], [], "there is no such block"),
        ([[UNDEFINED, -1, 5], [7, 1, 9]], [], "there is no such block"),
        ([[UNDEFINED, -1, 5], [7, 1, 2]], [[5, 6, 3]], "copies: there is no such block"),
        ([[UNDEFINED, -1, 5], [7, 1, 2]], [[5, 2, 17]], "copies: more tokens"),
    ],
)
def test_tables_that_do_not_fit_the_groups_are_refused(windows, copies, message):
    s = Sketch()
    x = s.embed()
    for window in (5, 40):
        x = s.graph.add(x, s.linear(s.attend(*s.qkv(s.norm(x)), s.cache(window=window)), DIM))
    s.logits(x)
    limits = replace(PLAIN, windows=(WindowLimits(5, 6), WindowLimits(40, 9)))
    program = lower(s.graph, s.weights, limits)
    program.launch(step_of([[UNDEFINED, -1, 5], [7, 1, 8]], []))
    with pytest.raises(ValueError, match=message):
        program.launch(step_of(windows, copies))


def test_arrays_of_a_group_that_do_not_fit_the_step_are_refused():
    sketch = odd()
    limits = replace(PLAIN, windows=(WindowLimits(5, 6),))
    program = lower(sketch.graph, sketch.weights, limits)
    batch = step_of([[UNDEFINED, UNDEFINED, 5]], [])
    program.launch(batch)
    own = batch.windows[0]
    for wrong, message in (
        (replace(own, slots=own.slots + 1), "slots: not those of the block table"),
        (replace(own, slots=own.slots[:2]), "the arrays of tokens differ"),
        (replace(own, block_tables=own.block_tables[:, :2].copy()), "longer than its block table"),
        (replace(own, block_tables=own.block_tables[:0]), "the arrays of rows differ"),
    ):
        with pytest.raises(ValueError, match=message):
            program.launch(replace(batch, windows=(wrong,)))


def test_the_interpreter_with_groups_is_the_reference():
    sketch, prompts = odd(), {"a": some_words(70)}
    limits = window_limits(sketch.graph, 64, 1)
    windows = {each.window: each.num_blocks for each in limits.windows}
    texts = WindowTexts(lower(sketch.graph, sketch.weights, limits), limits)
    batch = Batch.of([texts.part("a", prompts["a"])], BLOCK)
    found = texts.program.launch(batch).result().logits
    expected = Interpreter(sketch.graph, sketch.weights, limits.num_blocks, BLOCK, windows=windows).run(batch)
    assert found is not None and relative_error(found, expected) < 1e-4
