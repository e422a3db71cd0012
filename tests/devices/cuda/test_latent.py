"""Latent attention in a program: both of its forms, its cache, and law 8."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from quire.devices.cuda import device
from quire.devices.cuda.caches import Caches
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.latent import AttendLatent
from quire.devices.cuda.plain import SplitProduct
from quire.ops.batch import Batch, RowPart
from quire.ops.cache import Latent, PagedKV
from quire.ops.registry import relative_error
from tests.devices.cuda.models import Texts, lowered
from tests.graph.odd_graphs import odd_graph
from tests.graph.sketch import BLOCK, LIMITS, MAX_ERROR, Lengths, Sketch, error_of, interpreted
from tests.graph.sketch import lowered as lowered_sketch

pytestmark = pytest.mark.device


def small() -> Sketch:
    return odd_graph("latent_attention")


def test_a_prompt_in_the_expanded_form_gives_the_same_logits(place, monkeypatch):
    """The prompts of 7 and 9 tokens are expanded; a short one, a chunk and a decoded token are not."""
    monkeypatch.setattr(device, "EXPANDED_TOKENS", 6)
    run = lowered_sketch(CudaDevice(place), small(), fuse=True)
    assert error_of(run, small(), Lengths(first=7, second=2, chunk=3, third=9)) < MAX_ERROR


@pytest.mark.interpreted
@pytest.mark.parametrize("kv_dtype", ["bf16", "f8_e4m3"])
def test_each_kv_format_stays_near_the_interpreter(kv_dtype, place):
    texts = Texts(lowered(small(), place, replace(LIMITS, num_blocks=16), kv_dtype=kv_dtype), num_blocks=2)
    exact = interpreted(small().graph, small())
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    found = [texts.step({0: tokens}), texts.step({0: [7]})]
    batches = [Batch.of([RowPart(tokens, 0, [1, 2])], BLOCK), Batch.of([RowPart([7], 8, [1, 2])], BLOCK)]
    for logits, batch in zip(found, batches, strict=True):
        assert relative_error(logits, exact(batch)) < (0.1 if kv_dtype == "bf16" else 0.3)


@pytest.mark.interpreted
def test_in_deterministic_mode_chunks_and_other_rows_change_no_bit(place):
    program = lowered(small(), place, LIMITS, deterministic=True)
    assert all(each.fixed_chunk for each in program.instructions if isinstance(each, AttendLatent))
    tokens, texts = list(range(11)), Texts(program, num_blocks=2)
    whole = texts.step({0: tokens}, num_logits=len(tokens))
    parts = [texts.step({1: tokens[:4], 2: [5]}, num_logits=4)[:4], texts.step({2: [6, 7], 1: tokens[4:10]}, 6)[2:]]
    parts.append(texts.step({1: tokens[10:], 0: [3], 2: [4]})[:1])
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_block_of_latents_is_copied_in_every_layer(place):
    specs = [Latent(32, 16), PagedKV(2, 16, 16), Latent(32, 16), Latent(16, 16)]
    caches = Caches(specs, BLOCK, torch.float32, torch.device(place), 4)
    tokens = sum(spec.values_per_token for spec in specs) * 4
    assert caches.num_bytes == 5 * BLOCK * tokens and caches.both_of(0) is None
    for layer in (0, 2, 3):
        caches.latents_of(layer)[1] = layer + 1.0
    caches.copy(np.array([[1, 3, 5]], np.int32))
    for layer in (0, 2, 3):
        copied = caches.latents_of(layer)
        assert copied.shape == (5, BLOCK, specs[layer].values_per_token)
        assert (copied[3, :5] == layer + 1.0).all() and not copied[3, 5:].any()


def test_products_of_one_value_are_one_without_copies(place):
    """Norms, ropes and latent attention read columns of the product where they are."""
    program = lowered(small(), place, LIMITS, dtype="f32")
    splits = [each for each in program.instructions if isinstance(each, SplitProduct)]
    assert [len(each.parts) for each in splits] == [4, 4]
    assert not any(part.copies for each in splits for part in each.parts)
