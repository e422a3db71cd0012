"""Files of models with experts: one tensor for each expert or stacks, quantized ones, random ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.graph.weight import ComputedTensor, StackedTensor
from quire.models.draw import draw
from quire.models.errors import BadCheckpoint, UnsupportedModel
from quire.models.moe import MoeConfig
from quire.models.registry import all_architectures
from quire.ops.registry import relative_error
from quire.weights.checkpoint import open_checkpoint
from quire.weights.container import Tensor
from quire.weights.quantized_tensors import Mxfp4Tensor
from tests.models.published_experts import WITH_EXPERTS
from tests.models.quantized import write_checkpoint
from tests.models.toys import (
    CASES,
    FIRST_CASES,
    MemoryCheckpoint,
    Session,
    as_tensors,
    make_toy,
    some_tokens,
    toy_of,
)

pytestmark = pytest.mark.pure

KINDS = {arch.name for arch in all_architectures() if issubclass(arch.config, MoeConfig)}
TOYS = [name for name in FIRST_CASES if CASES[name].kind in KINDS]


def published(case: str, folder: Path) -> MemoryCheckpoint:
    """The toy as transformers writes it: as such models are published."""
    make_toy(case).torch_model.save_pretrained(folder)
    found = open_checkpoint(folder)
    return MemoryCheckpoint("safetensors", make_toy(case).checkpoint.metadata, found.tensors)


@pytest.mark.parametrize("case", TOYS)
def test_a_file_that_transformers_writes_has_the_weights_of_the_model(case, tmp_path):
    saved, stacked = draw(published(case, tmp_path)).weights, draw(make_toy(case).checkpoint).weights
    assert saved.keys() == stacked.keys()
    for name, weight in stacked.items():
        assert np.array_equal(saved[name].float32(), weight.float32()), name


def test_experts_of_published_files_are_stored_apart_and_one_is_read_alone(tmp_path):
    checkpoint = published("qwen3_moe", tmp_path)
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in checkpoint.tensors
    up = draw(checkpoint).weights["layers.0.experts.up"]
    assert isinstance(up.source, StackedTensor) and up.shape == (8, 40, 48)
    assert np.shares_memory(up.matrix(3).raw(), checkpoint.tensors["model.layers.0.mlp.experts.3.up_proj.weight"].data)


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_missing_expert_is_named(number, tmp_path):
    checkpoint = published("qwen3_moe", tmp_path)
    gone = f"model.layers.1.mlp.experts.{number}.down_proj.weight"
    rest = {name: tensor for name, tensor in checkpoint.tensors.items() if name != gone}
    named = r"experts\.down_proj\.weight is \[7, 48, 40\]" if number == 7 else gone.replace(".", r"\.")
    with pytest.raises(BadCheckpoint, match=named):
        draw(replace(checkpoint, tensors=rest))


@pytest.mark.parametrize("case", ["qwen3_moe", "granitemoe", "gpt_oss"])
def test_a_gguf_file_with_gate_and_up_in_one_stack_has_the_same_weights(case):
    apart = make_toy(case).as_gguf()
    tensors = dict(apart.tensors)
    for layer, kind in ((layer, kind) for layer in range(2) for kind in ("weight", "bias")):
        names = [f"blk.{layer}.ffn_{word}_exps.{kind}" for word in ("gate", "up")]
        if names[0] in tensors:
            both = np.concatenate([tensors.pop(name).array for name in names], 1)
            tensors |= as_tensors({f"blk.{layer}.ffn_gate_up_exps.{kind}": both})
    found, expected = draw(replace(apart, tensors=tensors)).weights, draw(apart).weights
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name].float32(), expected[name].float32()) for name in expected)


def test_experts_of_different_shapes_are_refused(tmp_path):
    checkpoint = published("qwen3_moe", tmp_path)
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    wrong = as_tensors({name: np.zeros((48, 39), np.float32)})
    with pytest.raises(BadCheckpoint, match=r"experts\.2\.down_proj\.weight is f32 \[48, 39\].*alike"):
        draw(replace(checkpoint, tensors={**checkpoint.tensors, **wrong}))


def test_a_stack_of_another_shape_is_refused():
    checkpoint = make_toy("qwen3_moe").checkpoint
    name = "model.layers.1.mlp.experts.gate_up_proj"
    for shape in ((8, 79, 48), (8, 81, 48), (7, 80, 48), (8, 80, 47)):
        tensor = ComputedTensor(name, np.zeros(shape, np.float32))
        with pytest.raises(BadCheckpoint, match=r"gate_up_proj is \[.*must be \[8, 80, 48\]"):
            draw(replace(checkpoint, tensors={**checkpoint.tensors, name: tensor}))


def mxfp4_folder(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A checkpoint of gpt-oss with MXFP4 experts of random bytes, and the toy with their numbers, by transformers."""
    torch = pytest.importorskip("torch")
    convert = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    toy = toy_of("GptOssForCausalLM", {**OSS, "hidden_size": 64, "intermediate_size": 96, "sliding_window": 8}, seed=5)
    rng, arrays = np.random.default_rng(2), {}
    for name, tensor in toy.torch_model.state_dict().items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            arrays[name] = tensor.numpy()
            continue
        experts, columns, rows = tensor.shape
        blocks = rng.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = rng.integers(121, 126, blocks.shape[:-1], np.uint8)
        arrays |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensor.copy_(convert(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32))
    config = {**toy.checkpoint.metadata, "quantization_config": MXFP4}
    pytest.importorskip("safetensors.numpy").save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return toy, arrays


OSS = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def test_mxfp4_experts_of_safetensors_give_the_logits_of_transformers(tmp_path):
    toy, _ = mxfp4_folder(tmp_path)
    model, tokens = draw(open_checkpoint(tmp_path)), some_tokens(40)
    assert model.weights["layers.1.experts.up"].format == "mxfp4"
    actual = Session(model).step({"a": tokens})["a"]
    assert relative_error(actual, toy.expected_logits(tokens)) < 1e-4


def test_mxfp4_of_safetensors_is_that_of_gguf(tmp_path):
    """Repacked bytes have the numbers that transformers and the gguf package compute."""
    gguf, torch = pytest.importorskip("gguf"), pytest.importorskip("torch")
    convert = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (2, 6, 3, 16), np.uint8)
    scales = rng.integers(1, 253, (2, 6, 3), np.uint8)
    tensor = Mxfp4Tensor(as_bytes("w_blocks", blocks), as_bytes("w_scales", scales))
    expected = convert(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32).numpy().swapaxes(1, 2)
    assert (tensor.shape, tensor.num_bytes) == ((2, 6, 96), 2 * 6 * 3 * 17)
    assert np.array_equal(tensor.dequantize(), expected)
    repacked = gguf.quants.dequantize(tensor.data.reshape(2, 6, -1), gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(repacked, expected)
    assert np.array_equal(tensor.matrix(1).dequantize(), expected[1])


def as_bytes(name: str, array: np.ndarray) -> Tensor:
    return Tensor(name, array.shape, "u8", array.reshape(-1))


@pytest.mark.parametrize("end", ["gate_up_proj_scales", "down_proj_blocks", "gate_up_proj_bias"])
def test_an_mxfp4_checkpoint_without_a_part_is_refused(end, tmp_path):
    _, arrays = mxfp4_folder(tmp_path)
    gone = f"model.layers.0.mlp.experts.{end}"
    rest = {name: array for name, array in arrays.items() if name != gone}
    pytest.importorskip("safetensors.numpy").save_file(rest, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadCheckpoint, match=gone.removesuffix("_scales").replace(".", r"\.")):
        draw(open_checkpoint(tmp_path))


@pytest.mark.parametrize("way", ["fp8-tensor", "fp8-blocks", "compressed-fp8-rows", "awq", "gptq", "packed"])
def test_experts_of_quantized_checkpoints_keep_their_values(way, tmp_path):
    """Each expert is quantized apart, as published."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 96, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}
    toy = toy_of("Qwen3MoeForCausalLM", {**sizes, "intermediate_size": 64}, seed=4)
    toy.torch_model.save_pretrained(tmp_path)
    arrays = {name: tensor.dequantize() for name, tensor in open_checkpoint(tmp_path).tensors.items()}
    meant = write_checkpoint(way, tmp_path, replace(toy.checkpoint, tensors=as_tensors(arrays)))
    weights = draw(open_checkpoint(tmp_path)).weights
    for word in ("gate", "up", "down"):
        stack = weights[f"layers.1.experts.{word}"]
        assert stack.format in ("f8_e4m3", "int4")
        for index in range(8):
            expected = meant[f"model.layers.1.mlp.experts.{index}.{word}_proj.weight"]
            np.testing.assert_allclose(stack.matrix(index).float32(), expected, rtol=1e-5, atol=1e-6)


# In billions, as their publishers state them.
PARAMETERS = {
    "Mixtral 8x7B": 46.7,
    "Qwen1.5 MoE A2.7B": 14.3,
    "Qwen3 30B A3B": 30.5,
    "Qwen3 Coder 30B A3B FP8": 30.5,
    "OLMoE 1B 7B": 6.9,
    "Granite 3.1 3B A800M": 3.3,
    "gpt-oss 20B": 20.9,
    "Ernie 4.5 21B A3B": 21.8,
    "MiniMax M2": 228.7,
    "Hunyuan A13B": 80.4,
}


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_a_published_config_file_gives_a_model_of_the_published_size(name):
    """Drawn with random weights, of which none is made."""
    model = draw(MemoryCheckpoint("dummy", WITH_EXPERTS[name], {}))
    weights = {id(weight): weight for weight in model.weights.values()}.values()
    assert sum(np.prod(each.shape, dtype=float) for each in weights) / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)


RANDOM = {
    "plain": ("gpt_oss", None, "bf16", 2.0),
    "mxfp4": ("gpt_oss", MXFP4, "mxfp4", 17 / 32),
    "fp8": ("qwen3_moe", {"quant_method": "fp8"}, "f8_e4m3", 1.0),
    "fp8 blocks": ("qwen3_moe", {"quant_method": "fp8", "weight_block_size": [32, 64]}, "f8_e4m3", 1 + 4 / 32 / 64),
    "int4": ("qwen3_moe", {"quant_method": "awq", "bits": 4, "group_size": 32}, "int4", 0.75),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_experts_have_the_format_of_the_configuration(name, tmp_path):
    case, quantization, fmt, size = RANDOM[name]
    widths = dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 96)
    sizes = {"hidden_size": 64, "num_local_experts": 300, **widths, "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps({**make_toy(case).checkpoint.metadata, **sizes}, default=str))
    weights = draw(open_checkpoint(tmp_path, "dummy")).weights
    up, router = weights["layers.1.experts.up"], weights["layers.1.mlp.router"]
    assert (up.shape, up.format, router.format) == ((300, 96, 64), fmt, "bf16")
    assert up.num_bytes == 300 * 96 * 64 * size
    assert up.matrix(299).float32().std() == pytest.approx(0.02, rel=0.5)


def test_random_biases_of_experts_are_not_quantized(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {**make_toy("gpt_oss").checkpoint.metadata, "quantization_config": MXFP4, "hidden_size": 64}, default=str
        )
    )
    bias = draw(open_checkpoint(tmp_path, "dummy")).weights["layers.1.experts.gate.bias"]
    assert (bias.shape, bias.format) == ((6, 40), "bf16") and np.abs(bias.float32()).max() < 0.2


def read(config: dict[str, Any]) -> MoeConfig:
    return draw(MemoryCheckpoint("dummy", config, {})).config


def test_two_names_of_one_number_must_agree():
    config = {**WITH_EXPERTS["Qwen3 30B A3B"], "num_local_experts": 128}
    assert read(config).num_experts == 128
    with pytest.raises(UnsupportedModel, match="num_experts = 128 and num_local_experts = 64"):
        read({**config, "num_local_experts": 64})


REFUSED = {
    "more chosen than there are": ("Qwen3 30B A3B", {"num_experts_per_tok": 129}, "129 of 128 experts"),
    "no experts": ("Qwen3 30B A3B", {"num_experts": 0}, "num_experts = 0"),
    "layers that differ": ("Hunyuan A13B", {"moe_topk": [8] * 31 + [4]}, "moe_topk"),
    "dense layers that are no list": ("Qwen3 30B A3B", {"mlp_only_layers": 3}, "mlp_only_layers = 3"),
    "a window without layers": ("Qwen1.5 MoE A2.7B", {"use_sliding_window": True}, "use_sliding_window = True"),
    "clipped queries": ("OLMoE 1B 7B", {"clip_qkv": 8.0}, r"clip_qkv = 8\.0"),
    "another scoring": ("MiniMax M2", {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
    "two sizes of rope": ("MiniMax M2", {"partial_rotary_factor": 0.25}, "rotary_dim = 64"),
    "another activation": ("gpt-oss 20B", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "another quantization": ("gpt-oss 20B", {"quantization_config": {"quant_method": "nvfp4"}}, "nvfp4"),
    "another least sum": ("Ernie 4.5 21B A3B", {"moe_norm_min": 0.1}, r"moe_norm_min = 0\.1"),
    "experts on a dense model": ("Mixtral 8x7B", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
                                 "num_local_experts = 8"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_that_changes_the_maths_of_experts_is_refused_by_name(case):
    name, changes, named = REFUSED[case]
    with pytest.raises(UnsupportedModel, match=named):
        read({**WITH_EXPERTS[name], **changes})
