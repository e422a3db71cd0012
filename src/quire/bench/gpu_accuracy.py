"""`quire bench gpu-accuracy`: divergence from float32 of each number format that a GPU computes in.

`python -m quire.bench gpu-accuracy --file MODEL.gguf` needs torch, triton and numpy, and without --tokens a tokenizer;
no server. The text and the positions are those of accuracy/cpu_accuracy.py. Each format is measured twice, since few
and many tokens use different kernels: a whole window in one step ("prompt"), and one token of every window in a step
("decode"). It prints one JSON line for each format and way:

    kl_f32, kl_bf16      mean KL divergence, in nats, from the prompts' distributions in float32 and in bfloat16
    same_f32, same_bf16  share of positions with the same likeliest token
    formats              how many elements of the model's matrices are multiplied in each format
"""

from __future__ import annotations

import gc
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.bench.accuracy.divergence import BLOCK, NUM_WINDOWS, WINDOW, divergences, log_probabilities
from quire.devices import base
from quire.devices.facts import DeviceUnavailable
from quire.models.draw import DrawnModel, draw
from quire.ops.batch import Batch, RowPart
from quire.weights.checkpoint import open_checkpoint

Array = NDArray[Any]


class NumberFormats(NamedTuple):
    """The formats that a model is computed in."""

    options: base.LoweringOptions
    kv_dtype: str = "bf16"


EXACT, PLAIN = "f32", "bf16"  # the references
FORMATS = {  # "plain" and "fp8" use dequantized weights, whatever the file's format
    EXACT: NumberFormats(base.LoweringOptions(dtype="f32", quantize="plain"), "f32"),
    PLAIN: NumberFormats(base.LoweringOptions(quantize="plain")),
    "fp8": NumberFormats(base.LoweringOptions(quantize="fp8")),
    "as stored": NumberFormats(base.DEFAULT_OPTIONS),
    "bf16, KV f8_e4m3": NumberFormats(base.LoweringOptions(quantize="plain"), "f8_e4m3"),
    "fp8, KV f8_e4m3": NumberFormats(base.LoweringOptions(quantize="fp8"), "f8_e4m3"),
}


def main(arguments: Namespace) -> None:
    """Parse the rest of the command line and print a line for each format and way."""
    parser = ArgumentParser(prog="quire bench gpu-accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("--file", required=True, help="a GGUF file, or a folder of safetensors")
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS, help=f"number of windows, of {WINDOW} tokens each")
    parser.add_argument("--tokens", help="a .npy of the windows' tokens, int32 [windows, tokens], instead of the text")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments.rest)
    if options.tokens is None:
        accuracy = import_module("quire.bench.accuracy.cpu_accuracy")  # imported here: it needs tokenizers
        windows = accuracy.sample_windows(options.file)
    else:
        windows = np.load(options.tokens)
    model, device = draw(open_checkpoint(options.file)), base.open(options.device)
    for line in compare_formats(model, device, windows[: options.windows]):
        print(json.dumps(line), flush=True)


def compare_formats(model: DrawnModel, device: base.Device, windows: Array) -> Iterator[dict[str, Any]]:
    """Yield a line for each format and way."""
    references: dict[str, Array] = {}
    for name, formats in FORMATS.items():
        began = time.perf_counter()
        program = _lower(model, device, formats, windows)
        load_seconds = time.perf_counter() - began
        counts = dict(program.formats) if isinstance(program, base.ReportsFormats) else {}
        for way, compute in WAYS.items():
            actual = compute(program, windows)
            if name in (EXACT, PLAIN):
                references.setdefault(name, actual)
            line: dict[str, Any] = {"numbers": name, "way": way, "num_positions": actual.shape[0] * actual.shape[1]}
            for other, expected in references.items():
                mean_kl, same = _mean(expected, actual)
                line |= {f"kl_{other}": mean_kl, f"same_{other}": same}
            yield line | {"formats": counts, "load_seconds": round(load_seconds, 1)}
        del program
        gc.collect()  # frees its weights before the next one is loaded


def _lower(model: DrawnModel, device: base.Device, formats: NumberFormats, windows: Array) -> base.Program:
    num_windows, length = windows.shape
    blocks = len(_blocks(0, length))
    limits = base.Limits(
        max_tokens=length,
        max_rows=num_windows,
        max_logits=max(length, num_windows),
        max_blocks=blocks,
        num_blocks=num_windows * blocks,
        block_tokens=BLOCK,
        kv_dtype=formats.kv_dtype,
    )
    if not device.facts().conversions:
        raise DeviceUnavailable(f"The device {device.name!r} has no choice of number formats.")
    return device.lower(model.graph, model.weights, limits, formats.options)


def compute_as_prompts(program: base.Program, windows: Array) -> Array:
    """Return log-probabilities, float32 [windows, positions, vocabulary], with one step a window."""
    length = windows.shape[1]
    parts = (RowPart(window.tolist(), 0, _blocks(0, length), length - length // 2) for window in windows)
    return _log_probabilities(np.stack([_logits(program, [part])[:-1] for part in parts]))


def compute_by_decoding(program: base.Program, windows: Array) -> Array:
    """Return the same with one token of every window a step, after the first half of each window."""
    length = windows.shape[1]
    tables = [_blocks(row, length) for row in range(len(windows))]
    for window, table in zip(windows, tables, strict=True):
        program.launch(Batch.of([RowPart(window[: length // 2].tolist(), 0, table, 0)], BLOCK)).result()
    steps = (
        [RowPart([int(window[at])], at, table) for window, table in zip(windows, tables, strict=True)]
        for at in range(length // 2, length - 1)
    )
    return _log_probabilities(np.stack([_logits(program, step) for step in steps], axis=1))


WAYS: dict[str, Callable[[base.Program, Array], Array]] = {"prompt": compute_as_prompts, "decode": compute_by_decoding}


def _blocks(row: int, length: int) -> range:
    """Return the block ids of a window."""
    num_blocks = -(-length // BLOCK)
    return range(row * num_blocks, (row + 1) * num_blocks)


def _logits(program: base.Program, parts: Sequence[RowPart]) -> Array:
    """Run one step and return its logits, float32 [L, vocabulary]."""
    logits = program.launch(Batch.of(parts, BLOCK)).result().logits
    assert logits is not None
    return logits


def _log_probabilities(logits: Array) -> Array:
    """Compute the windows in parallel threads: with large vocabularies this takes longer than the model."""
    with ThreadPoolExecutor() as threads:
        return np.stack(list(threads.map(log_probabilities, logits)))


def _mean(expected: Array, actual: Array) -> tuple[float, float]:
    """Return the mean KL divergence in nats, and the share of positions with the same likeliest token."""
    with ThreadPoolExecutor() as threads:
        mean_kl, same = np.concatenate(list(threads.map(divergences, expected, actual))).mean(0)
    return float(mean_kl), float(same)
