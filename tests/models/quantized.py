"""Writes quantized checkpoints of the llama toy by the published descriptions of their formats, with none of our code.

Each writer takes a matrix [rows, columns] and returns its tensors by the ends of their names, and the dequantized
matrix.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.toys import MemoryCheckpoint, make_toy

GROUP = 8  # of the toy's 48 and 88 columns
WIDE_GROUP = 32  # of a toy whose matrices have a multiple of that many columns
BLOCK = (16, 32)
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbours is in which bits of a word, the lowest first

Arrays = dict[str, Any]
Written = tuple[Arrays, np.ndarray]
Writer = Callable[[np.ndarray], Written]


def words(values: np.ndarray, places: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """[n, 8 k] values below 16 -> int32 [n, k]."""
    packed = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for bits, place in enumerate(places):
        packed |= values[:, place::8].astype(np.uint32) << np.uint32(4 * bits)
    return packed.view(np.int32)


def groups_of(matrix: np.ndarray, of_column: np.ndarray, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """values 0..15 [rows, columns], zeros 0..15 and scales (float16) [rows, groups]."""
    num_groups = of_column.max() + 1
    low, high = (
        np.stack([pick(matrix[:, of_column == g], axis=1) for g in range(num_groups)], 1) for pick in (np.min, np.max)
    )
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = ((high - low) / 15).astype(np.float16)
    zeros = np.full(scales.shape, 8) if symmetric else np.rint(-low / scales).clip(0, 15).astype(int)
    wide = scales.astype(np.float32)[:, of_column]
    return np.rint(matrix / wide + zeros[:, of_column]).clip(0, 15).astype(int), zeros, scales


def meant(values: np.ndarray, zeros: np.ndarray, scales: np.ndarray, of_column: np.ndarray) -> np.ndarray:
    return ((values - zeros[:, of_column]) * scales.astype(np.float64)[:, of_column]).astype(np.float32)


def in_order(matrix: np.ndarray) -> np.ndarray:
    columns = np.arange(matrix.shape[1])
    return columns // (GROUP if len(columns) % WIDE_GROUP else WIDE_GROUP)


def awq(matrix: np.ndarray) -> Written:
    of_column = in_order(matrix)
    values, zeros, scales = groups_of(matrix, of_column, symmetric=False)
    arrays = {"qweight": words(values.T, AWQ_PLACES), "qzeros": words(zeros.T, AWQ_PLACES), "scales": scales.T}
    return arrays, meant(values, zeros, scales, of_column)


def gptq(matrix: np.ndarray, missing: int = 1, shuffled: bool = False) -> Written:
    of_column = in_order(matrix)
    if shuffled:
        of_column = np.random.default_rng(len(of_column)).permutation(of_column)  # one order for all that read an input
    values, zeros, scales = groups_of(matrix, of_column, symmetric=False)
    arrays = {
        "qweight": words(values).T,
        "qzeros": words(((zeros - missing) % 16).T),
        "scales": scales.T,
        "g_idx": of_column.astype(np.int32),
    }
    return arrays, meant(values, zeros, scales, of_column)


def packed(matrix: np.ndarray, symmetric: bool = True) -> Written:
    of_column = in_order(matrix)
    values, zeros, scales = groups_of(matrix, of_column, symmetric)
    arrays = {
        "weight_packed": words(values),
        "weight_scale": scales,
        "weight_shape": np.array(matrix.shape, np.int64),
    }
    if not symmetric:
        rows = -(-len(zeros) // 8) * 8
        whole = np.zeros((rows, zeros.shape[1]), int)
        whole[: len(zeros)] = zeros
        arrays["weight_zero_point"] = words(whole.T).T
    return arrays, meant(values, zeros, scales, of_column)


def fp8(matrix: np.ndarray, scale: np.ndarray, name: str, shape: tuple[int, ...]) -> Written:
    """`scale` is [rows, columns]; its numbers are stored in this shape."""
    torch = pytest.importorskip("torch")
    values = torch.from_numpy((matrix / scale).astype(np.float32)).to(torch.float8_e4m3fn)
    step = [-(-size // count) for size, count in zip(matrix.shape, (*shape, 1, 1)[:2], strict=True)]
    stored = torch.from_numpy(np.ascontiguousarray(scale[:: step[0], :: step[1]].reshape(shape), np.float32))
    return {"weight": values, name: stored, "input_scale": torch.ones(1)}, values.float().numpy() * scale


def fp8_tensor(matrix: np.ndarray) -> Written:
    return fp8(matrix, np.full(matrix.shape, np.abs(matrix).max() / 448, np.float32), "weight_scale", (1,))


def fp8_rows(matrix: np.ndarray) -> Written:
    scale = np.abs(matrix).max(1, keepdims=True).repeat(matrix.shape[1], 1) / 448
    return fp8(matrix, scale.astype(np.float32), "weight_scale", (len(matrix), 1))


def fp8_blocks(matrix: np.ndarray) -> Written:
    scale = np.empty_like(matrix)
    for top in range(0, matrix.shape[0], BLOCK[0]):
        for left in range(0, matrix.shape[1], BLOCK[1]):
            here = slice(top, top + BLOCK[0]), slice(left, left + BLOCK[1])
            scale[here] = np.abs(matrix[here]).max() / 448
    scales = np.ascontiguousarray(scale[:: BLOCK[0], :: BLOCK[1]])
    arrays, _ = fp8(matrix, scale, "weight_scale_inv", matrix.shape)
    torch = pytest.importorskip("torch")
    arrays["weight_scale_inv"] = torch.from_numpy(scales)
    return arrays, arrays["weight"].float().numpy() * scale


def compressed(kind: str, bits: int, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": kind, "num_bits": bits, **more}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


# name: (quantization_config, writer)
WAYS: dict[str, tuple[dict[str, Any], Writer]] = {
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8_tensor),
    "fp8-blocks": ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": BLOCK}, fp8_blocks),
    "compressed-fp8-rows": (compressed("float", 8, strategy="channel"), fp8_rows),
    "compressed-fp8-tensor": (compressed("float", 8, strategy="tensor"), fp8_tensor),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}, gptq),
    "gptq-v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
        lambda matrix: gptq(matrix, missing=0),
    ),
    "gptq-act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
        lambda matrix: gptq(matrix, shuffled=True),
    ),
    "packed": (compressed("int", 4, strategy="group", group_size=GROUP), packed),
    "packed-zeros": (compressed("int", 4, strategy="group", group_size=GROUP), lambda m: packed(m, symmetric=False)),
}


def write_checkpoint(way: str, folder: Path, checkpoint: MemoryCheckpoint | None = None) -> dict[str, np.ndarray]:
    """Write a toy's folder with every matrix of its layers in this format. Return all weights, dequantized."""
    save = pytest.importorskip("safetensors.torch").save_file
    torch = pytest.importorskip("torch")
    quantization, write = WAYS[way]
    checkpoint = checkpoint or make_toy("llama").checkpoint
    stored, weights = {}, {}
    for name, tensor in checkpoint.tensors.items():
        stem, _, _ = name.rpartition(".")
        if ".layers." not in name or len(tensor.shape) == 1:
            stored[name], weights[name] = torch.from_numpy(tensor.array), tensor.array
            continue
        arrays, weights[name] = write(tensor.array)
        for part, array in arrays.items():
            given = array if torch.is_tensor(array) else torch.from_numpy(np.ascontiguousarray(array))
            stored[f"{stem}.{part}"] = given
    save(stored, folder / "model.safetensors")
    config = {**checkpoint.metadata, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    return weights
