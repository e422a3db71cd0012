"""Quantized checkpoints on the device give the logits of their dequantized weights, for few tokens and for many."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from quire.config import BadSetting
from quire.devices.base import Limits, LoweringOptions
from quire.devices.cuda import FACTS
from quire.devices.cuda.device import CudaDevice
from quire.devices.cuda.instructions import AddProduct, Attend, Gate
from quire.devices.cuda.int4 import Int4Linear, join_int4
from quire.devices.cuda.linear import Linear
from quire.devices.cuda.program import CudaProgram
from quire.devices.cuda.tiles import Tiles
from quire.devices.cuda.weights import Placer
from quire.devices.facts import DeviceUnavailable
from quire.graph.weight import Weight
from quire.models.draw import DrawnModel, draw
from quire.ops.batch import Batch, RowPart
from quire.ops.registry import relative_error
from quire.weights.checkpoint import open_checkpoint
from quire.weights.random_weights import RandomTensor
from tests.devices.cuda.models import in_format
from tests.models.case import TOKENS
from tests.models.quantized import WIDE_GROUP, write_checkpoint
from tests.models.toys import MemoryCheckpoint, Session, Toy, as_tensors, some_tokens, to_gguf, toy_of
from tests.ops.encoded_tensor import EncodedTensor

pytestmark = [pytest.mark.device]
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
PROMPT = 70  # tokens: more than a matrix of 4 bits is streamed for
BF16_ERROR = 4e-2
LIMITS = Limits(max_tokens=96, max_rows=4, max_logits=8, max_blocks=8, num_blocks=16, kv_dtype="bf16")


@cache
def wide() -> Toy:
    """A toy with rows long enough for the 4-bit kernels."""
    return toy_of("LlamaForCausalLM", {**SIZES, "num_hidden_layers": 1}, seed=1)


@cache
def toy() -> MemoryCheckpoint:
    """A toy whose matrices keep the scale of activations, so that errors are not amplified."""
    whole = wide().checkpoint
    arrays = {name: tensor.array * (0.35 if tensor.array.ndim == 2 else 1) for name, tensor in whole.tensors.items()}
    return replace(whole, tensors=as_tensors(arrays))


def lowered(model: DrawnModel, place: str, kv_dtype: str = "bf16", **wishes) -> CudaProgram:
    limits, options = replace(LIMITS, kv_dtype=kv_dtype), LoweringOptions(**wishes)
    return CudaDevice(place).lower(model.graph, model.weights, limits, options)


def logits(program: CudaProgram) -> np.ndarray:
    """Return the logits of a prompt's last token and of two tokens after it: a step of many tokens, and two of few."""
    tokens, table, rows = some_tokens(PROMPT + 2), list(range(1, 7)), []
    for start, end in ((0, PROMPT), (PROMPT, PROMPT + 1), (PROMPT + 1, PROMPT + 2)):
        batch = Batch.of([RowPart(tokens[start:end], start, table)], 16)
        rows.append(program.launch(batch).result().logits)
    return np.concatenate(rows)


def by_transformers(weights: dict[str, np.ndarray], kind: str) -> np.ndarray:
    """Return the same by transformers: in float32 ("f32"), in bfloat16, or with FP8 inputs of all linears."""
    model = copy.deepcopy(wide().torch_model)
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in weights.items()})
    for name, module in model.named_modules():
        if kind == "fp8" and name.endswith("_proj"):
            module.register_forward_pre_hook(lambda module, args: (as_fp8(args[0]),))
    model = model.bfloat16() if kind == "bf16" else model
    with torch.no_grad():
        return model(torch.tensor([some_tokens(PROMPT + 2)])).logits[0, PROMPT - 1 :].float().numpy()


def assert_near(found: np.ndarray, weights: dict[str, np.ndarray], kind: str) -> None:
    """Assert that the error is at most twice that of transformers in the same number format."""
    exact = by_transformers(weights, "f32")
    allowed = 2 * relative_error(by_transformers(weights, kind), exact)
    assert relative_error(found, exact) <= allowed


def as_fp8(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def linears(program: CudaProgram) -> list[Linear | Int4Linear]:
    return [each.linear for each in program.instructions if isinstance(each, Attend | AddProduct | Gate)]


@pytest.mark.parametrize("way", ["awq", "gptq-act-order", "packed-zeros"])
def test_a_4_bit_checkpoint_is_multiplied_without_conversion(way: str, tmp_path: Path, place: str):
    weights = write_checkpoint(way, tmp_path, toy())
    program = lowered(draw(open_checkpoint(tmp_path)), place)
    assert len(linears(program)) == 4 and all(isinstance(each, Int4Linear) for each in linears(program))
    assert all((each.columns is not None) == (way == "gptq-act-order") for each in linears(program))
    assert_near(logits(program), weights, "bf16")


def test_4_bit_matrices_work_with_float32_activations(tmp_path: Path, place: str):
    weights = write_checkpoint("gptq-act-order", tmp_path, toy())
    program = lowered(draw(open_checkpoint(tmp_path)), place, "f32", dtype="f32")
    assert relative_error(logits(program), by_transformers(weights, "f32")) <= 2e-3  # scales are kept in 11 bits


def test_deterministic_4_bit_products_do_not_depend_on_other_rows(tmp_path: Path, place: str):
    write_checkpoint("awq", tmp_path, toy())
    program = lowered(draw(open_checkpoint(tmp_path)), place, deterministic=True)
    tokens = some_tokens(40)
    whole = RowPart(tokens, 0, [1, 2, 3], num_logits=1)
    together = program.launch(Batch.of([RowPart(some_tokens(30), 0, [4, 5]), whole], 16)).result().logits
    program.launch(Batch.of([RowPart(tokens[:17], 0, [6, 7, 8], num_logits=0)], 16)).result()
    chunked = program.launch(Batch.of([RowPart(tokens[17:], 17, [6, 7, 8])], 16)).result().logits
    np.testing.assert_array_equal(together[-1], chunked[0])


@pytest.mark.parametrize("way", ["fp8-tensor", "fp8-blocks"])
def test_an_fp8_checkpoint_is_multiplied_as_fp8(way: str, tmp_path: Path, place: str):
    weights = write_checkpoint(way, tmp_path, toy())
    program = lowered(draw(open_checkpoint(tmp_path)), place)
    assert all(isinstance(each, Linear) and each.rounds for each in linears(program))
    assert_near(logits(program), weights, "fp8")


@pytest.mark.parametrize("way", ["fp8-tensor", "compressed-fp8-rows"])
def test_fp8_numbers_of_a_checkpoint_are_not_rounded_again(way: str, tmp_path: Path, place: str):
    write_checkpoint(way, tmp_path, toy())
    model = draw(open_checkpoint(tmp_path))
    placed = linears(lowered(model, place))[0]
    assert isinstance(placed, Linear) and placed.scale is not None
    numbers = placed.weight.float().cpu().numpy() * placed.scale.cpu().numpy()[:, None]
    names = [f"layers.0.attn.{word}" for word in "qkv"]
    np.testing.assert_array_equal(numbers, np.concatenate([model.weights[name].float32() for name in names]))


def gguf(formats: dict[str, str]) -> DrawnModel:
    """Return the toy as a GGUF file: each matrix in the format listed for the end of its name."""
    model = draw(to_gguf(replace(wide(), checkpoint=toy())))
    weights = {
        name: in_format(weight, formats[name.rpartition(".")[2]], seed)
        if len(weight.shape) == 2 and "." in name
        else weight
        for seed, (name, weight) in enumerate(model.weights.items())
    }
    return replace(model, weights=weights)


def by_references(model: DrawnModel) -> np.ndarray:
    return Session(model).step({"text": some_tokens(PROMPT + 2)})["text"][PROMPT - 1 :]


def test_4_bit_matrices_of_a_gguf_file_are_not_converted_and_others_are_logged_once(place: str, caplog):
    formats = {"q": "q4_0", "k": "q4_1", "v": "q4_0", "out": "q4_0", "gate": "q4_1", "up": "q4_0", "down": "q8_0"}
    model = gguf(formats)
    with caplog.at_level(logging.INFO, "quire.devices.cuda"):
        program = lowered(model, place)
    kinds = [type(each) for each in linears(program)]
    assert kinds == [Int4Linear, Int4Linear, Int4Linear, Linear]
    assert [record.message for record in caplog.records if "q8_0" in record.message] == [
        "matrices in q8_0 are dequantized: there is no kernel for these formats"
    ]
    assert relative_error(logits(program), by_references(model)) <= BF16_ERROR


def test_matrices_of_different_formats_are_not_joined(place: str):
    weights = gguf(dict.fromkeys(("q", "k", "out", "gate", "up", "down"), "q4_0") | {"v": "q8_0"}).weights
    names = [next(name for name in weights if name.endswith(f".{part}")) for part in "qkv"]
    q, k, v = (weights[name] for name in names)
    assert join_int4([q, k]) is not None
    assert join_int4([q, k, v]) is None, "one is in a format that has no kernel"


def test_matrices_with_different_orders_of_columns_are_dequantized(tmp_path: Path, place: str):
    weights = write_checkpoint("gptq-act-order", tmp_path, toy())
    model = draw(open_checkpoint(tmp_path))
    name = next(name for name in model.weights if name.endswith(".up"))
    parts = model.weights[name].source.load()
    moved = parts._replace(  # the same groups, the last of them first
        packed=np.roll(parts.packed, WIDE_GROUP // 2, 1),
        scales=np.roll(parts.scales, 1, 1),
        zeros=np.roll(parts.zeros, 1, 1),
        columns=np.roll(parts.columns, WIDE_GROUP),
    )
    changed = replace(model.weights[name], source=replace(model.weights[name].source, load=lambda: moved))
    np.testing.assert_array_equal(changed.float32(), model.weights[name].float32())
    program = lowered(replace(model, weights={**model.weights, name: changed}), place)
    assert [isinstance(each, Int4Linear) for each in linears(program)].count(False) == 1
    assert_near(logits(program), weights, "bf16")


def test_random_fp8_weights_have_the_right_deviation(place: str):
    model = draw(toy())
    weights = {
        name: replace(weight, format="f8_e4m3", source=RandomTensor(name, weight.shape, 0.25, format="f8_e4m3"))
        if len(weight.shape) == 2 and "." in name
        else weight
        for name, weight in model.weights.items()
    }
    program = lowered(replace(model, weights=weights), place)
    for each in linears(program):
        assert isinstance(each, Linear) and each.scale is not None
        numbers = each.weight.float() * each.scale[:, None]
        assert 0.2 < float(numbers.std()) < 0.3
    assert np.isfinite(logits(program)).all()


def test_the_option_plain_dequantizes_everything(tmp_path: Path, place: str, caplog):
    """4-bit and FP8 matrices give exactly their numbers, in float32."""
    write_checkpoint("fp8-blocks", tmp_path, toy())
    of_4_bits = gguf(dict.fromkeys(("q", "k", "v", "out", "gate", "up", "down"), "q4_1"))
    for model in (of_4_bits, draw(open_checkpoint(tmp_path))):
        with caplog.at_level(logging.INFO, "quire.devices.cuda"):
            program = lowered(model, place, "f32", dtype="f32", quantize="plain")
        assert all(isinstance(each, Linear) and not each.rounds for each in linears(program))
        assert relative_error(logits(program), by_references(model)) <= 1e-4
    assert "no kernel" not in caplog.text


@pytest.mark.parametrize("kv_format", FACTS.kv_formats)
def test_each_kv_format_of_the_facts_runs(kv_format, place):
    found = logits(lowered(draw(toy()), place, kv_format))
    assert relative_error(found, logits(lowered(draw(toy()), place))) < 2 * BF16_ERROR


def test_formats_that_are_not_in_the_facts_are_refused_with_those_that_are(place):
    model = draw(toy())
    with pytest.raises(BadSetting, match=r"'q8_0', which the device 'cuda'.*bf16, f32, f16, f8_e4m3; .* is f8_e4m3"):
        lowered(model, place, "q8_0")
    with pytest.raises(BadSetting, match=r"quantize is 'q1_x'.*it has fp8, plain"):
        lowered(model, place, quantize="q1_x")
    name, weight = next(iter(model.weights.items()))
    strange = replace(model, weights={**model.weights, name: replace(weight, format="q1_x")})
    with pytest.raises(DeviceUnavailable, match=r"in the format 'q1_x', which the device 'cuda' does not have"):
        lowered(strange, place)


@pytest.mark.parametrize("format", ["q4_0", "q4_1", "q8_0", "f8_e4m3", "f32", "f16"])
def test_matrices_are_resident_as_the_facts_say(format, place):
    model = draw(toy())
    names = {name for name, weight in model.weights.items() if len(weight.shape) == 2 and "embed" not in name}
    stored = {name: EncodedTensor.of(name, model.weights[name].float32(), format) for name in names - {"head"}}
    weights = {name: Weight(name, each.shape, format, each) for name, each in stored.items()}
    program = lowered(replace(model, weights={**model.weights, **weights}), place)
    torch_names = {"bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "int4": "int4"}
    assert set(program.formats) == {"bfloat16", torch_names[FACTS.weight_formats[format]]}


@cache
def fused_toy() -> MemoryCheckpoint:
    """A toy of Phi-3, which has q, k and v in one matrix, gate and up in another."""
    whole = toy_of("Phi3ForCausalLM", {**SIZES, "num_hidden_layers": 1, **TOKENS}, seed=2).checkpoint
    arrays = {name: tensor.array * (0.35 if tensor.array.ndim == 2 else 1) for name, tensor in whole.tensors.items()}
    return replace(whole, tensors=as_tensors(arrays))


@pytest.mark.parametrize("way", ["awq", "gptq-act-order"])
def test_parts_of_a_4_bit_matrix_are_multiplied_without_conversion(way: str, tmp_path: Path, place: str):
    weights = write_checkpoint(way, tmp_path, fused_toy())
    same = draw(replace(fused_toy(), tensors=as_tensors(weights)))
    program = lowered(draw(open_checkpoint(tmp_path)), place, "f32", dtype="f32")
    assert len(linears(program)) == 4 and all(isinstance(each, Int4Linear) for each in linears(program))
    assert relative_error(logits(program), by_references(same)) <= 2e-3  # scales are kept in 11 bits


@pytest.mark.parametrize("way", ["fp8-tensor", "compressed-fp8-rows"])
def test_parts_of_an_fp8_matrix_keep_their_scales(way: str, tmp_path: Path, place: str):
    weights = write_checkpoint(way, tmp_path, fused_toy())
    same = draw(replace(fused_toy(), tensors=as_tensors(weights))).weights
    tiles = Tiles(num_processors=4)
    placer = Placer(draw(open_checkpoint(tmp_path)).weights, torch.device(place), torch.bfloat16, tiles, None)
    for name in ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up"):
        linear = placer.matrix([f"layers.0.{name}"], [None])
        assert isinstance(linear, Linear) and linear.scale is not None
        numbers = linear.weight.float() * linear.scale[:, None]
        np.testing.assert_allclose(numbers.cpu(), same[f"layers.0.{name}"].float32(), rtol=2e-7, err_msg=name)
