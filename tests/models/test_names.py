"""Binding names: every tensor must exist, fit, and be used; errors use the names of the file."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from quire.models.draw import draw
from quire.models.errors import BadCheckpoint
from quire.models.registry import all_architectures
from tests.models.toys import (
    CASES,
    CONVERSIONS,
    FIRST_CASES,
    MemoryCheckpoint,
    as_tensors,
    make_toy,
    random_checkpoint,
)

pytestmark = pytest.mark.pure

LLAMA, QWEN2 = (
    next(arch for arch in all_architectures() if arch.name == name) for name in ("LlamaForCausalLM", "Qwen2ForCausalLM")
)


def without(checkpoint: MemoryCheckpoint, *names: str) -> MemoryCheckpoint:
    return replace(checkpoint, tensors={name: t for name, t in checkpoint.tensors.items() if name not in names})


def plus(checkpoint: MemoryCheckpoint, **arrays: np.ndarray) -> MemoryCheckpoint:
    return replace(checkpoint, tensors={**checkpoint.tensors, **as_tensors(arrays)})


def test_missing_tensors_are_counted_and_named():
    checkpoint = random_checkpoint(LLAMA, "safetensors")
    gone = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(BadCheckpoint, match=rf"lacks 2 tensors \({gone[0]}, {gone[1]}\)"):
        draw(without(checkpoint, *gone))
    with pytest.raises(BadCheckpoint, match=r"lacks 1 tensor \(blk\.1\.attn_q\.bias\)"):
        draw(without(random_checkpoint(QWEN2, "gguf"), "blk.1.attn_q.bias"))


def test_a_long_list_is_cut():
    with pytest.raises(BadCheckpoint, match=r"lacks 21 tensors \(.*, …\)"):
        draw(replace(random_checkpoint(LLAMA, "safetensors"), tensors={}))


def test_an_unused_tensor_is_an_error():
    checkpoint = random_checkpoint(LLAMA, "safetensors")
    with pytest.raises(BadCheckpoint, match=r"1 tensor \(model\.vision\.weight\) that this architecture does not use"):
        draw(plus(checkpoint, **{"model.vision.weight": np.zeros((2, 2), np.float32)}))
    with pytest.raises(BadCheckpoint, match=r"q_proj\.bias\) that this architecture"):  # attention_bias is not set
        draw(plus(checkpoint, **{"model.layers.0.self_attn.q_proj.bias": np.zeros(48, np.float32)}))


def test_stored_rope_frequencies_are_ignored():
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    draw(plus(random_checkpoint(LLAMA, "safetensors"), **{name: np.zeros(4, np.float32)}))


@pytest.mark.parametrize("container, tensor", [("safetensors", "model.norm.weight"), ("gguf", "blk.0.ffn_up.weight")])
def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(container, tensor):
    checkpoint = plus(random_checkpoint(LLAMA, container), **{tensor: np.zeros((7, 5), np.float32)})
    with pytest.raises(BadCheckpoint, match=rf"{tensor} is \[7, 5\]; by the configuration it must be \["):
        draw(checkpoint)


def test_rope_factors_of_another_length_are_refused():
    wrong = plus(random_checkpoint(LLAMA, "gguf"), **{"rope_freqs.weight": np.ones(3, np.float32)})
    with pytest.raises(BadCheckpoint, match=r"rope_freqs\.weight is \[3\]"):
        draw(wrong)


@pytest.mark.parametrize("divisor", [0.0, -1.0, np.nan, np.inf])
def test_rope_factors_that_are_not_positive_are_refused(divisor):
    wrong = plus(random_checkpoint(LLAMA, "gguf"), **{"rope_freqs.weight": np.array([1, 1, 1, divisor], np.float32)})
    with pytest.raises(BadCheckpoint, match=r"rope_freqs\.weight"):
        draw(wrong)


@pytest.mark.parametrize("container", ["safetensors", "gguf"])
def test_tied_names_are_one_weight(container):
    checkpoint = random_checkpoint(LLAMA, container, tied=True)
    weights = draw(checkpoint).weights
    assert weights["head"] is weights["embed"]
    untied = draw(random_checkpoint(LLAMA, container)).weights
    assert untied["head"] is not untied["embed"]


def test_a_tied_table_that_is_stored_twice_is_read_once():
    checkpoint = random_checkpoint(LLAMA, "safetensors", tied=True)
    table = checkpoint.tensors["model.embed_tokens.weight"].array
    weights = draw(plus(checkpoint, **{"lm_head.weight": table})).weights
    assert weights["head"] is weights["embed"]


def test_a_head_that_differs_from_a_tied_table_is_used():
    checkpoint = random_checkpoint(LLAMA, "safetensors", tied=True)
    table = checkpoint.tensors["model.embed_tokens.weight"].array.copy()
    table[-1, -1] += 1
    model = draw(plus(checkpoint, **{"lm_head.weight": table}))
    assert np.array_equal(model.weights["head"].float32(), table) and not model.config.tied


def test_a_head_in_another_format_is_used_without_a_comparison():
    checkpoint = random_checkpoint(LLAMA, "safetensors", tied=True)

    class Unread:
        name, format, shape = "lm_head.weight", "bf16", checkpoint.tensors["model.embed_tokens.weight"].shape

        @property
        def data(self) -> np.ndarray:
            raise AssertionError("the head was read")

    model = draw(replace(checkpoint, tensors={**checkpoint.tensors, "lm_head.weight": Unread()}))
    assert model.weights["head"].format == "bf16"


def test_a_head_without_a_table_serves_as_both():
    checkpoint = random_checkpoint(LLAMA, "safetensors", tied=True)
    table = checkpoint.tensors["model.embed_tokens.weight"].array
    weights = draw(plus(without(checkpoint, "model.embed_tokens.weight"), **{"lm_head.weight": table})).weights
    assert weights["head"] is weights["embed"] and np.array_equal(weights["head"].float32(), table)


TILED = ("qwen3_5", "qwen3_5_moe")  # GGUF files have another order of heads
FOLDED = ("falcon_h1",)  # GGUF files have its factors in the weights
IN_GGUF = [name for name in FIRST_CASES if CASES[name].kind in CONVERSIONS and CASES[name].in_gguf]


@pytest.mark.parametrize("case", FIRST_CASES)
def test_every_tensor_of_a_checkpoint_is_needed(case: str):
    """Without any one of them the model is refused, by the tensor's name, or by that of its stack if it is the last."""
    checkpoint = make_toy(case).checkpoint
    for name in checkpoint.tensors:
        stack = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        with pytest.raises(BadCheckpoint, match=f"{re.escape(name)}|{re.escape(stack)}"):
            draw(without(checkpoint, name))


@pytest.mark.parametrize("case", FIRST_CASES)
def test_an_unused_tensor_of_any_architecture_is_an_error(case: str):
    for name in ("model.vision.weight", "model.layers.0.mixer.weight"):
        with pytest.raises(BadCheckpoint, match=rf"1 tensor \({re.escape(name)}\)"):
            draw(plus(make_toy(case).checkpoint, **{name: np.zeros((2, 2), np.float32)}))


@pytest.mark.parametrize("case", [case for case in IN_GGUF if case not in FOLDED])
def test_both_containers_give_the_same_weights(case: str):
    """Whatever the order of rows, the stacking and the numbers added in either. Names of ropes may differ.

    Heads of the delta rule may too: the rows and columns of all its tensors are in that order.
    """
    toy, other = make_toy(case), ("rope.", "delta.") if case in TILED else ("rope.",)
    both = (
        {n: w for n, w in draw(each).weights.items() if not any(word in n for word in other)}
        for each in (toy.checkpoint, toy.as_gguf())
    )
    stored, converted = both
    assert stored.keys() == converted.keys()
    for name, weight in stored.items():
        np.testing.assert_allclose(converted[name].float32(), weight.float32(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_llama_in_gguf_has_paired_rows():
    for container in ("safetensors", "gguf"):
        weights = draw(random_checkpoint(LLAMA, container)).weights
        moved = {name for name, weight in weights.items() if weight.row_order is not None}
        expected = {"layers.0.attn.q", "layers.0.attn.k", "layers.1.attn.q", "layers.1.attn.k"}
        assert moved == (expected if container == "gguf" else set())


def test_drawing_reads_no_weight():
    checkpoint = random_checkpoint(LLAMA, "gguf")

    class Unread:
        format, data = "q4_1", None

        def __init__(self, name: str, shape: tuple[int, ...]) -> None:
            self.name, self.shape = name, shape

        def dequantize(self) -> np.ndarray:
            raise AssertionError(f"{self.name} was read")

    model = draw(replace(checkpoint, tensors={name: Unread(name, t.shape) for name, t in checkpoint.tensors.items()}))
    assert model.weights["layers.1.mlp.down"].format == "q4_1"
