"""GGUF files with quantized experts: their numbers are those of the gguf package; the CPU multiplies them as stored.

A router's choice between near-equal experts may change with activations of 8 bits, so the CPU is judged by the
divergence of its answers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.devices import base
from quire.devices.cpu.bindings import native
from quire.models.draw import DrawnModel, draw
from quire.ops.registry import relative_error
from quire.weights.checkpoint import open_checkpoint
from tests.devices.cpu.programs import session
from tests.models.quantized import write_checkpoint
from tests.models.toys import Session, Toy, as_tensors, some_tokens, to_gguf, toy_of

pytestmark = pytest.mark.device

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "head_dim": 32}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 256, "norm_topk_prob": True},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 96, "sliding_window": 8},
    ),
}
MAX_DIVERGENCE = 0.02  # nats, in the mean over tokens
NUM_BLOCKS = 16
LIMITS = base.Limits(max_tokens=64, max_rows=4, max_logits=64, max_blocks=8, num_blocks=NUM_BLOCKS, kv_dtype="f32")


def q4_k(array: np.ndarray) -> np.ndarray:
    """Quantize to Q4_K, simply: the gguf package only reads it."""
    groups = array.reshape(-1, 8, 32).astype(np.float64)  # a block has 8 groups
    least = np.minimum(groups.min(-1), 0)
    scale = (groups.max(-1) - least) / 15
    d, dmin = ((each.max(-1) / 63).astype(np.float16) for each in (scale, -least))
    units = [each[:, None].astype(np.float64) for each in (d, dmin)]
    bits = [np.rint(each / unit).clip(0, 63) for each, unit in zip((scale, -least), units, strict=True)]
    steps, mins = (each * unit for each, unit in zip(bits, units, strict=True))
    values = np.rint((groups + mins[..., None]) / np.maximum(steps[..., None], 1e-12)).clip(0, 15).astype(np.uint8)
    sc, m = (each.astype(np.uint8) for each in bits)
    packed = np.concatenate(
        [
            (sc[:, :4] & 63) | (sc[:, 4:] >> 4 << 6),
            (m[:, :4] & 63) | (m[:, 4:] >> 4 << 6),
            (sc[:, 4:] & 15) | (m[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    halves = values[:, 0::2] | values[:, 1::2] << 4  # [blocks, 4, 32]
    heads = np.stack([d, dmin], -1).view(np.uint8).reshape(len(packed), 4)
    blocks = np.concatenate([heads, packed, halves.reshape(len(packed), -1)], axis=1)
    return blocks.reshape(*array.shape[:-1], -1)


def quantized(kind: str, fmt: str, folder: Path) -> tuple[Toy, Path]:
    """A GGUF file of a toy with quantized experts, and the toy with the numbers that the gguf package reads of them."""
    gguf, torch = pytest.importorskip("gguf"), pytest.importorskip("torch")
    name, sizes = KINDS[kind]
    toy = toy_of(name, {**SIZES, **sizes}, seed=7)
    converted, number = to_gguf(toy), gguf.GGMLQuantizationType[fmt]
    writer = gguf.GGUFWriter(folder / "toy.gguf", str(converted.metadata["general.architecture"]))
    for key, value in converted.metadata.items():
        if key != "general.architecture":
            {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](key, value)
    read = {}
    for key, tensor in converted.tensors.items():
        if "_exps.weight" not in key:
            writer.add_tensor(key, np.ascontiguousarray(tensor.array, np.float32))
            continue
        rows = q4_k(tensor.array) if fmt == "Q4_K" else gguf.quants.quantize(tensor.array, number)
        read[key] = gguf.quants.dequantize(rows, number)
        writer.add_tensor(key, rows, raw_dtype=number)
    for finish in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        finish()
    writer.close()
    for layer in range(SIZES["num_hidden_layers"]):
        gate, up, down = (
            torch.from_numpy(read[f"blk.{layer}.ffn_{word}_exps.weight"]) for word in ("gate", "up", "down")
        )
        experts = toy.torch_model.model.layers[layer].mlp.experts
        with torch.no_grad():
            if kind == "gpt_oss":
                experts.gate_up_proj.copy_(torch.stack([gate, up], 2).flatten(1, 2).transpose(1, 2))
                experts.down_proj.copy_(down.transpose(1, 2))
            else:
                experts.gate_up_proj.copy_(torch.cat([gate, up], 1))
                experts.down_proj.copy_(down)
    return toy, folder / "toy.gguf"


@pytest.mark.skipif(native() is None, reason="the extension was not built")
@pytest.mark.parametrize("way", ["fp8-blocks", "packed"])
def test_quantized_experts_of_safetensors_run_on_the_cpu(way: str, tmp_path):
    """Their scales make numbers that f16 rounds, so one token in twenty may have another expert."""
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "intermediate_size": 64}
    toy = toy_of("Qwen3MoeForCausalLM", {**sizes, "hidden_size": 64, "head_dim": 16}, seed=4)
    toy.torch_model.save_pretrained(tmp_path)
    arrays = {name: tensor.dequantize() for name, tensor in open_checkpoint(tmp_path).tensors.items()}
    write_checkpoint(way, tmp_path, replace(toy.checkpoint, tensors=as_tensors(arrays)))
    model, tokens = draw(open_checkpoint(tmp_path)), some_tokens(40)
    right, found = Session(model).step({"a": tokens})["a"], on_the_cpu(model, tokens)
    errors = np.abs(found - right).max(-1) / np.abs(right).max()
    assert np.quantile(errors, 0.95) < 5e-3


def on_the_cpu(model: DrawnModel, tokens: list[int]) -> np.ndarray:
    program = base.open("cpu").lower(model.graph, model.weights, LIMITS, base.LoweringOptions())
    return session(program, model, len(tokens), NUM_BLOCKS).step({"a": tokens})["a"]


@pytest.mark.parametrize("kind, fmt", [("qwen3_moe", "Q8_0"), ("qwen3_moe", "Q4_K"), ("gpt_oss", "MXFP4")])
def test_quantized_experts_of_a_gguf_file_give_the_logits_of_their_numbers(kind, fmt, tmp_path):
    toy, path = quantized(kind, fmt, tmp_path)
    model, tokens = draw(open_checkpoint(path)), some_tokens(60)
    stack = model.weights["layers.0.experts.down"]
    assert stack.format == fmt.lower() and len(stack.shape) == 3
    right = toy.expected_logits(tokens)
    assert relative_error(Session(model).step({"a": tokens})["a"], right) < 1e-4
    if native() is None:
        pytest.skip("the extension was not built")
    found = on_the_cpu(model, tokens)
    plain, coarse = (each - np.logaddexp.reduce(each, -1, keepdims=True) for each in (right, found))
    divergence = float((np.exp(plain) * (plain - coarse)).sum(-1).mean())
    print(f"{kind} {fmt}: mean KL {divergence:.5f} nats")
    assert 0 <= divergence < MAX_DIVERGENCE
