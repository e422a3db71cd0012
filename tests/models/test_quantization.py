"""Quantized checkpoints: every published layout is read correctly, and unsupported ones are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.engine.llm import LLM
from quire.graph.weight import StoredTensor
from quire.models.draw import DrawnModel, draw
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.models.quantization import Quantization, join_tensors, read_quantization
from quire.ops.registry import relative_error
from quire.quant.int4 import from_packed
from quire.types.request import SamplingParams
from quire.weights.checkpoint import open_checkpoint
from quire.weights.quantized_tensors import GroupedInt4, ScaledTensor, as_grouped_int4
from quire.weights.random_weights import RandomTensor
from tests.devices.cpu.programs import lower, session
from tests.models.quantized import WAYS, compressed, write_checkpoint
from tests.models.toys import as_tensors, make_toy, some_tokens

pytestmark = pytest.mark.device


@pytest.mark.parametrize("way", WAYS)
def test_a_quantized_checkpoint_is_dequantized_correctly(way: str, tmp_path: Path):
    expected = write_checkpoint(way, tmp_path)
    weights = {weight.source.name: weight for weight in draw(open_checkpoint(tmp_path)).weights.values()}
    quantized = [weight for weight in weights.values() if isinstance(weight.source, ScaledTensor | GroupedInt4)]
    assert len(quantized) == 14  # seven matrices of two layers
    for name, matrix in expected.items():
        if isinstance(weights[name].source, ScaledTensor):  # a product in float32 is rounded once
            np.testing.assert_allclose(weights[name].float32(), matrix, rtol=2e-7)
        else:
            np.testing.assert_array_equal(weights[name].float32(), matrix)


@pytest.mark.parametrize("way", ["fp8-blocks", "compressed-fp8-rows", "gptq-act-order", "packed-zeros", "awq"])
def test_greedy_tokens_equal_those_of_transformers_with_the_dequantized_weights(way: str, tmp_path: Path):
    import copy

    import torch

    expected = write_checkpoint(way, tmp_path)
    model = copy.deepcopy(make_toy("llama").torch_model)
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in expected.items()})
    prompt = some_tokens(9)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    with LLM(tmp_path, num_blocks=64, kv_dtype="f32") as llm:
        (answer,) = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    assert list(answer.tokens) == text[0, len(prompt) :].tolist()


FUSED = ("phi3", "gpt_neox")  # q, k and v are parts of one matrix, stacked, or in groups


def dequantized(case: str, weights: dict[str, np.ndarray]) -> DrawnModel:
    """The model of a case with these weights, in float32."""
    return draw(replace(make_toy(case).checkpoint, tensors=as_tensors(weights)))


@pytest.mark.parametrize("case", FUSED)
@pytest.mark.parametrize("way", WAYS)
def test_a_part_of_a_quantized_matrix_keeps_its_values_and_scales(way: str, case: str, tmp_path: Path):
    expected = dequantized(case, write_checkpoint(way, tmp_path, make_toy(case).checkpoint)).weights
    weights = draw(open_checkpoint(tmp_path)).weights
    parts = [name for name, weight in weights.items() if weight.format in ("int4", "f8_e4m3")]
    assert {"layers.0.attn.q", "layers.1.attn.k", "layers.1.attn.v", "layers.0.mlp.up"} <= set(parts)
    for name, weight in weights.items():
        np.testing.assert_allclose(weight.float32(), expected[name].float32(), rtol=2e-7, err_msg=name)
        if (grouped := as_grouped_int4(weight)) is not None:
            np.testing.assert_array_equal(grouped.dequantize(), expected[name].float32(), err_msg=name)


@pytest.mark.parametrize("case", FUSED)
@pytest.mark.parametrize("way", ["awq", "gptq-act-order", "fp8-blocks", "compressed-fp8-rows"])
def test_parts_of_quantized_matrices_give_the_logits_of_the_dequantized_model_on_the_cpu(
    way: str, case: str, tmp_path: Path
):
    same = dequantized(case, write_checkpoint(way, tmp_path, make_toy(case).checkpoint))
    model, tokens = draw(open_checkpoint(tmp_path)), some_tokens(20)
    right = session(lower(same, precision="float"), same).step({"a": tokens})["a"]
    exact = session(lower(model, precision="float"), model).step({"a": tokens})["a"]
    assert relative_error(exact, right) < 1e-5
    packed = session(lower(model), model).step({"a": tokens})["a"]
    assert relative_error(packed, right) < 1e-2  # values times scales are rounded to f16


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_int32_words_packed_by_compressed_tensors_are_read(is_symmetric: bool):
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    import torch

    rng = np.random.default_rng(0)
    values, zeros = rng.integers(-8, 8, (24, 64), np.int8), rng.integers(-8, 8, (24, 4), np.int8)
    scales = rng.uniform(0.01, 0.1, (24, 4)).astype(np.float16).astype(np.float32)
    words = helpers.pack_to_int32(torch.from_numpy(values), 4).numpy()
    packed_zeros = None if is_symmetric else helpers.pack_to_int32(torch.from_numpy(zeros), 4, packed_dim=0).numpy()
    zeros = np.zeros_like(zeros) if is_symmetric else zeros
    expected = (values - zeros.repeat(16, 1).astype(np.float32)) * scales.repeat(16, 1)
    np.testing.assert_array_equal(from_packed(words, scales, packed_zeros).dequantize(), expected)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes', which is not supported. Supported are: awq"),
        ({"quant_method": "gptq", "bits": 8}, "of 8 bits are not supported"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "layout 'marlin'"),
        ({"quant_method": "awq", "version": "GEMV"}, "layout 'GEMV'"),
        (compressed("int", 8), "int of 8 bits"),
    ],
)
def test_an_unsupported_quantization_is_refused(config: dict[str, Any], message: str):
    with pytest.raises(UnsupportedModel, match=message):
        read_quantization(config)


def test_a_matrix_without_all_its_tensors_is_refused(tmp_path: Path):
    write_checkpoint("awq", tmp_path)
    tensors: dict[str, StoredTensor] = dict(open_checkpoint(tmp_path).tensors)
    stem = "model.layers.1.mlp.up_proj"
    without = {name: tensor for name, tensor in tensors.items() if name != f"{stem}.qzeros"}
    with pytest.raises(BadCheckpoint, match=rf"lacks {stem}\.qzeros"):
        join_tensors(without, Quantization("awq"))
    swapped = tensors | {f"{stem}.scales": tensors["model.layers.1.mlp.down_proj.scales"]}
    with pytest.raises(BadCheckpoint, match=rf"{stem} cannot be read"):
        join_tensors(swapped, Quantization("awq"))


def test_eight_bits_without_a_scale_are_refused(tmp_path: Path):
    write_checkpoint("fp8-tensor", tmp_path)
    tensors = dict(open_checkpoint(tmp_path).tensors)
    del tensors["model.layers.0.self_attn.k_proj.weight_scale"]
    with pytest.raises(BadCheckpoint, match=r"lacks the scale of model\.layers\.0\.self_attn\.k_proj\.weight"):
        join_tensors(tensors, Quantization("fp8"))


@pytest.mark.parametrize("ignored", ["model.layers.1.mlp.up_proj", "up_proj", r"re:.*\.up_proj$", "mlp.up_proj"])
def test_an_ignored_module_is_matched_by_name_part_or_pattern(ignored: str):
    quantization = Quantization("fp8", ("lm_head", ignored))
    assert not quantization.covers("model.layers.1.mlp.up_proj") and not quantization.covers("lm_head")
    assert quantization.covers("model.layers.1.mlp.down_proj")


def test_random_weights_have_the_configured_format(tmp_path: Path):
    config = {**make_toy("llama").checkpoint.metadata}
    fp8 = {"quant_method": "fp8", "ignored_layers": ["lm_head", "model.layers.0.mlp.down_proj"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": fp8}))
    weights = draw(open_checkpoint(tmp_path, "dummy")).weights
    formats = {name: weight.format for name, weight in weights.items() if len(weight.shape) == 2}
    plain = {"embed", "head", "layers.0.mlp.down"}
    assert {name for name, format in formats.items() if format == "bf16"} == plain
    assert {format for name, format in formats.items() if name not in plain} == {"f8_e4m3"}
    matrix = weights["layers.1.mlp.up"]
    assert isinstance(matrix.source, RandomTensor) and abs(matrix.float32().std() / matrix.source.std - 1) < 0.05
    awq = {**WAYS["awq"][0]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": awq}))
    matrix = draw(open_checkpoint(tmp_path, "dummy")).weights["layers.1.mlp.up"]
    assert matrix.format == "int4" and abs(matrix.float32().std() / 0.02 - 1) < 0.05
