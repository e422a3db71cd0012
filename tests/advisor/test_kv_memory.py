"""KV memory of models whose layers keep different parts of a text, by arithmetic from published sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quire.advisor.hardware import PRESETS
from quire.advisor.kv_memory import KVMemory, estimate_kv_memory
from quire.advisor.model_shape import PUBLISHED, AttentionLayers, ModelShape, checkpoint_shape, published_shape
from quire.advisor.roofline import Roofline, decode_work
from quire.advisor.workload_summary import summarize_workload
from quire.config import load
from quire.devices.facts import device_facts
from quire.runner.cache_plan import CacheBytes, WindowBytes
from tests.advisor.test_simulation import at_once
from tests.models.toys import make_toy

pytestmark = pytest.mark.pure

GEMMA = PUBLISHED["gemma-3-27b"].with_kv("bf16")  # 62 layers, 16 KV heads of 128; every sixth keeps all tokens
LONG = 131072
LAYER = 2 * 16 * 128 * 2  # bytes of a token in one layer


def memory_of(shape: ModelShape) -> KVMemory:
    workload = at_once(1, 100, 10)
    return estimate_kv_memory(
        workload, summarize_workload(workload).context, Roofline(shape, PRESETS["h200"]), 16, shared=0.0
    )


def test_gemma_3_27b_takes_a_sixth_of_its_kv_memory_at_128k_if_blocks_behind_windows_are_freed() -> None:
    assert GEMMA.layers == (AttentionLayers(None, 10, 10 * 4096), AttentionLayers(1024, 52, 52 * 4096))
    kept = replace(GEMMA, frees_windows=False)
    assert kept.request_bytes(LONG) == 62 * LAYER * LONG == 66_571_993_088
    assert GEMMA.request_bytes(LONG) == 10 * LAYER * LONG + 52 * LAYER * 1024 == 11_173_625_856
    assert GEMMA.request_bytes(512) == kept.request_bytes(512)
    assert GEMMA.cache_bytes(16) == CacheBytes(10 * LAYER * 16, (WindowBytes(1024, 52 * LAYER * 16),))
    assert published_shape("gemma3:27b") is PUBLISHED["gemma-3-27b"]


def test_the_page_on_memory_has_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs" / "MEMORY.md").read_text()
    for context in (8192, 32768, LONG):
        sizes = (shape.request_bytes(context) for shape in (replace(GEMMA, frees_windows=False), GEMMA))
        assert f"| {context:,} | {' | '.join(f'{size / 1e9:.1f} GB' for size in sizes)} |" in page


def test_more_long_requests_fit_where_windows_free_memory() -> None:
    shapes = (GEMMA, replace(GEMMA, frees_windows=False))
    fits = [{fit.context: fit.num_requests for fit in memory_of(shape).fits} for shape in shapes]
    windows, everything = fits
    assert (windows[LONG], everything[LONG]) == (6, 1)
    assert windows[2048] > everything[2048]
    assert memory_of(GEMMA).by_group == "81.9 kB per token, 426.0 kB for each of the last 1,024 tokens"


def test_a_step_reads_no_more_than_the_windows_and_each_state_once() -> None:
    gemma, hybrid = Roofline(GEMMA, PRESETS["h200"]), replace(GEMMA, state_bytes=50_000_000)
    assert GEMMA.read_bytes(8 * LONG, 8) == 8 * GEMMA.request_bytes(LONG)
    assert hybrid.read_bytes(800, 8) == 62 * LAYER * 800 + 8 * 2 * 50_000_000
    kept = replace(gemma, shape=replace(GEMMA, attention=None))
    assert gemma.seconds(decode_work(8, LONG)) < 0.5 * kept.seconds(decode_work(8, LONG))
    assert memory_of(hybrid).by_group.endswith("50.0 MB per state")


def test_the_layers_of_a_file_are_those_of_its_graph(tmp_path: Path) -> None:
    toy = make_toy("gemma3")
    toy.torch_model.save_pretrained(tmp_path)
    shape = checkpoint_shape(tmp_path, load({}, {}), device_facts("cpu"))
    specs = toy.draw().graph.caches
    by_reach = {each.window: each.values for each in shape.layers}
    assert len(by_reach) == 2 and sum(by_reach.values()) == sum(spec.values_per_token for spec in specs)
    assert shape.frees_windows == device_facts("cpu").frees_windows
