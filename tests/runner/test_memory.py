"""How much memory a model takes, and how many KV blocks fit beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.config import BadSetting, Config, load
from quire.devices.facts import device_facts
from quire.graph.graph import Graph
from quire.graph.weight import Transform, Weight
from quire.runner.cache_plan import CacheBytes, cache_bytes
from quire.runner.memory import (
    HOST_CONTEXTS,
    HOST_GROWTH,
    ModelMemory,
    fit_cache,
    fixed_bytes,
    resident_weight_bytes,
)
from tests.devices.cpu.programs import quantized_model
from tests.models.toys import make_toy
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = pytest.mark.pure

GB = 1 << 30


def block_bytes(graph: Graph, kv_dtype: str = "f16") -> int:
    return cache_bytes(graph.caches, load({"kv_dtype": kv_dtype}, {}), frees_windows=False).tokens


def test_a_hosts_cache_holds_a_few_contexts_and_not_all_memory() -> None:
    config = Config()
    one, cache = config.scheduler.max_context // config.cache.block_tokens, CacheBytes(1 << 20)
    large, _ = fit_cache(config, ModelMemory(512 * GB, GB, cache))
    assert large.cache.num_blocks == HOST_CONTEXTS * one
    assert large.cache.most_blocks == HOST_GROWTH * HOST_CONTEXTS * one  # it can be given more while it runs
    small, _ = fit_cache(config, ModelMemory(8 * GB, GB, cache))
    assert small.cache.num_blocks == 2048  # a quarter of 8 GB
    tiny, _ = fit_cache(config, ModelMemory(2 * GB, GB, cache))
    assert tiny.cache.num_blocks == one  # at least one context, if it fits
    assert tiny.cache.most_blocks == int(2 * GB * 0.9 - GB) >> 20  # and never more than fits


def test_a_set_number_of_blocks_is_kept_and_too_little_memory_is_an_error() -> None:
    asked = replace(Config(), cache=replace(Config().cache, num_blocks=77))
    assert fit_cache(asked, ModelMemory(GB, GB, CacheBytes(1 << 20)))[0] == asked
    with pytest.raises(BadSetting, match="No memory is left"):
        fit_cache(Config(), ModelMemory(GB, 2 * GB, CacheBytes(1 << 20)))


def test_weights_and_blocks_are_counted_in_bytes() -> None:
    model = make_toy("qwen2").draw()  # its head is its embedding: one array under two names
    stored = sum(tensor.array.nbytes for tensor in make_toy("qwen2").checkpoint.tensors.values())
    logits = (256 + 128) * model.config.vocab_size * 4
    taken = fixed_bytes(model.weights, model.config.vocab_size, Config(), device_facts("cpu"))
    assert 0 <= taken - stored - logits < 100  # and frequencies
    per_token = 2 * 2 * model.config.num_kv_heads * model.config.head_dim  # layers, K and V
    assert block_bytes(model.graph) == per_token * 2 * 16


def test_a_block_of_latents_has_one_latent_and_one_rotated_key_for_each_token() -> None:
    model = make_toy("deepseek_v2").draw()  # three layers, 20 + 8 numbers
    assert block_bytes(model.graph) == 3 * (20 + 8) * 2 * 16


@pytest.mark.parametrize(
    "device, format, expected",
    [("cpu", "q8_0", 34), ("cuda", "q8_0", 64), ("cpu", "f8_e4m3", 64), ("cuda", "f8_e4m3", 32)],
)
def test_a_weight_takes_what_its_format_on_the_device_takes(device: str, format: str, expected: int) -> None:
    num_bytes = {"q8_0": 34, "f8_e4m3": 32}[format]
    tensor = EncodedTensor("w", (4, 32), format, np.zeros(4 * num_bytes, np.uint8))
    assert resident_weight_bytes(Weight("w", (4, 32), format, tensor), device_facts(device)) == 4 * expected


@pytest.mark.parametrize("format, expected", [("q8_0", 34), ("mxfp4", 17), ("q4_0", 18), ("iq4_nl", 34), ("bf16", 64)])
def test_a_stack_of_experts_takes_what_it_takes_in_the_file_where_the_device_multiplies_it_as_stored(
    format: str, expected: int
) -> None:
    num_bytes = {"bf16": 64, "iq4_nl": 18}.get(format, expected)
    tensor = EncodedTensor("w", (3, 8, 32), format, np.zeros(3 * 8 * num_bytes, np.uint8))
    half = Weight("w", (3, 4, 32), format, tensor, Transform(rows=np.arange(4)))
    assert resident_weight_bytes(half, device_facts("cuda")) == 3 * 4 * expected
    assert resident_weight_bytes(half, device_facts("cpu")) == 3 * 4 * num_bytes


def test_a_block_of_q8_0_has_34_bytes_for_32_numbers_and_heads_must_fill_them() -> None:
    graph = make_toy("qwen2").draw().graph  # heads of 8
    for kv_dtype, expected in (("f32", 4), ("f16", 2), ("bf16", 2)):
        assert block_bytes(graph, kv_dtype) == sum(spec.values_per_token for spec in graph.caches) * expected * 16
    with pytest.raises(BadSetting, match="blocks of 32; the heads of this model have"):
        block_bytes(graph, "q8_0")
    wide = quantized_model("q4_1").graph  # heads of 32
    assert block_bytes(wide, "q8_0") == sum(spec.values_per_token for spec in wide.caches) * 16 * 34 // 32


def test_experts_are_counted_as_stored() -> None:
    stack = EncodedTensor.random("experts", (4, 256, 256), "q5_k", 0)
    matrix = EncodedTensor.random("matrix", (256, 256), "q5_k", 0)
    cuda = device_facts("cuda")
    assert resident_weight_bytes(Weight("experts", stack.shape, "q5_k", stack), cuda) == stack.num_bytes
    assert resident_weight_bytes(Weight("matrix", matrix.shape, "q5_k", matrix), cuda) == 2 * 256 * 256
