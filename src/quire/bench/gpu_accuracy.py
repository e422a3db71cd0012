"""How far the distribution of the next token is from float32's, in each number format that a GPU computes in.

`python -m quire.bench gpu-accuracy --file MODEL.gguf` needs torch, triton and numpy, and unless it is given --tokens
what makes tokens of a text; no server. The text and the positions are those of `quire.bench.accuracy`. Each format is
put to it twice, since few tokens and many take different kernels: a whole window in one step ("prompt"), and all
windows side by side, one token of each in a step ("decode"). It prints one JSON line for each format and way:

    kl_f32, kl_bf16      mean KL divergence, in nats, from the prompts' distributions in float32 and in bfloat16
    same_f32, same_bf16  share of positions with the same likeliest token as there
    formats              how many numbers of its matrices the model is multiplied with in each format
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

from quire.bench.divergence import BLOCK, NUM_WINDOWS, WINDOW, divergences, log_probabilities
from quire.devices import base
from quire.devices.facts import DeviceUnavailable
from quire.models.draw import Model, draw
from quire.ops.batch import Batch, RowPart
from quire.weights.checkpoint import open_checkpoint

Array = NDArray[Any]


class Numbers(NamedTuple):
    """What a model is computed in."""

    wishes: base.LoweringOptions
    kv_dtype: str = "bf16"


EXACT, PLAIN = "f32", "bf16"  # those that all are compared with
NUMBERS = {  # "plain" and "fp8" are of the dequantized weights, whatever the file has
    EXACT: Numbers({"dtype": "f32", "quantize": "plain"}, "f32"),
    PLAIN: Numbers({"quantize": "plain"}),
    "fp8": Numbers({"quantize": "fp8"}),
    "as stored": Numbers({}),
    "bf16, KV f8_e4m3": Numbers({"quantize": "plain"}, "f8_e4m3"),
    "fp8, KV f8_e4m3": Numbers({"quantize": "fp8"}, "f8_e4m3"),
}


def main(given: Namespace) -> None:
    """What `python -m quire.bench gpu-accuracy` does."""
    parser = ArgumentParser(prog="quire bench gpu-accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("--file", required=True, help="a GGUF file, or a folder of safetensors")
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS, help=f"of {WINDOW} tokens each")
    parser.add_argument("--tokens", help="a .npy of the windows' tokens, int32 [windows, tokens], instead of the text")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args(given.rest)
    if asked.tokens is None:
        windows = import_module("quire.bench.accuracy").windows_of(asked.file)  # here, since it needs tokenizers
    else:
        windows = np.load(asked.tokens)
    for line in compare(draw(open_checkpoint(asked.file)), base.open(asked.device), windows[: asked.windows]):
        print(json.dumps(line), flush=True)


def compare(model: Model, device: base.Device, windows: Array) -> Iterator[dict[str, Any]]:
    """A line for each format and each way."""
    references: dict[str, Array] = {}
    for name, numbers in NUMBERS.items():
        began = time.perf_counter()
        program = _lower(model, device, numbers, windows)
        loaded = time.perf_counter() - began
        formats = dict(program.formats) if isinstance(program, base.TellsFormats) else {}
        for way, answer in WAYS.items():
            found = answer(program, windows)
            if name in (EXACT, PLAIN):
                references.setdefault(name, found)
            line: dict[str, Any] = {"numbers": name, "way": way, "num_positions": found.shape[0] * found.shape[1]}
            for other, expected in references.items():
                mean_kl, same = _mean(expected, found)
                line |= {f"kl_{other}": mean_kl, f"same_{other}": same}
            yield line | {"formats": formats, "load_seconds": round(loaded, 1)}
        del program
        gc.collect()  # its weights make room for the next


def _lower(model: Model, device: base.Device, numbers: Numbers, windows: Array) -> base.Program:
    num_windows, length = windows.shape
    blocks = len(_blocks(0, length))
    limits = base.Limits(
        max_tokens=length,
        max_rows=num_windows,
        max_logits=max(length, num_windows),
        max_blocks=blocks,
        num_blocks=num_windows * blocks,
        block_tokens=BLOCK,
        kv_dtype=numbers.kv_dtype,
    )
    if not device.facts().conversions:
        raise DeviceUnavailable(f"The device {device.name!r} has no choice of number formats.")
    return device.lower(model.graph, model.weights, limits, **numbers.wishes)


def by_prompts(program: base.Program, windows: Array) -> Array:
    """Log-probabilities, float32 [windows, positions, vocabulary]: each window is one step."""
    length = windows.shape[1]
    parts = (RowPart(window.tolist(), 0, _blocks(0, length), length - length // 2) for window in windows)
    return _log_probabilities(np.stack([_logits(program, [part])[:-1] for part in parts]))


def by_decoding(program: base.Program, windows: Array) -> Array:
    """The same: after the half of each window that is not counted, a token of every window is one step."""
    length = windows.shape[1]
    tables = [_blocks(row, length) for row in range(len(windows))]
    for window, table in zip(windows, tables, strict=True):
        program.launch(Batch.of([RowPart(window[: length // 2].tolist(), 0, table, 0)], BLOCK)).result()
    steps = (
        [RowPart([int(window[at])], at, table) for window, table in zip(windows, tables, strict=True)]
        for at in range(length // 2, length - 1)
    )
    return _log_probabilities(np.stack([_logits(program, step) for step in steps], axis=1))


WAYS: dict[str, Callable[[base.Program, Array], Array]] = {"prompt": by_prompts, "decode": by_decoding}


def _blocks(row: int, length: int) -> range:
    """A window's own."""
    num_blocks = -(-length // BLOCK)
    return range(row * num_blocks, (row + 1) * num_blocks)


def _logits(program: base.Program, parts: Sequence[RowPart]) -> Array:
    """Of one step, float32 [L, vocabulary]."""
    logits = program.launch(Batch.of(parts, BLOCK)).result().logits
    assert logits is not None
    return logits


def _log_probabilities(logits: Array) -> Array:
    """A window at a time, beside one another: of large vocabularies this takes longer than the model."""
    with ThreadPoolExecutor() as threads:
        return np.stack(list(threads.map(log_probabilities, logits)))


def _mean(expected: Array, found: Array) -> tuple[float, float]:
    """KL divergence in nats, and the share of positions with the same likeliest token."""
    with ThreadPoolExecutor() as threads:
        mean_kl, same = np.concatenate(list(threads.map(divergences, expected, found))).mean(0)
    return float(mean_kl), float(same)
