"""`quire bench embed [NAME]`: sentences embedded a second on this CPU, beside other engines.

NAME is a shape: minilm-l6 or bge-base; without it, both. The others are sentence-transformers on torch, ONNX Runtime
and llama.cpp's server (`--peers`). All have the same random weights in float32 and the same sentences, in one run;
Quire also with matrices of 8 bits (`quantize q8_0`). Rates are of time; in brackets, of processor time, which other
work on the machine changes less. The best other is the fastest peer but torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

import numpy as np

from quire.bench.engines.child_process import run_in_child
from quire.bench.engines.encoder_model import write_encoder
from quire.bench.engines.encoder_peers import MEASURE, TORCH, EncoderLoad, Results
from quire.bench.engines.encoder_runs import run_quire
from quire.bench.engines.encoder_shapes import SHAPES
from quire.bench.engines.peer import PeerFailed, PeerUnavailable
from quire.bench.machine.description import describe_machine
from quire.bench.page.text_table import align_columns
from quire.config import home_folder, load
from quire.devices import base

LENGTHS = (16, 128, 512)
TOKENS = {"minilm-l6": 24_000, "bge-base": 6_000}  # of the sentences of each length
QUICK_TOKENS = 600
QUIRE, QUANTIZED = "quire", "quire q8_0"
NOTHING = "–"


def main(options: argparse.Namespace) -> None:
    """Print the rates and the ratios as tables."""
    if options.model and options.model not in TOKENS:
        raise SystemExit(f"There is no shape {options.model!r}. There are: {', '.join(TOKENS)}.")
    lengths = LENGTHS[:1] if options.quick else LENGTHS
    names = (QUIRE, QUANTIZED, *(name for name in MEASURE if name in options.peers))
    load_before = os.getloadavg()[0]
    rates, ratios = [], []
    for shape in (options.model,) if options.model else TOKENS:
        results = _measure(shape, lengths, options)
        for row, length in enumerate(lengths):
            found = {name: each[row] for name, each in results.items()}
            label = f"{shape}, {length}"
            rates.append((label, *(_rates(found.get(name)) for name in names)))
            ratios.append((label, *_ratios(found)))
    print(f"{describe_machine()}; load of the machine before: {load_before:.2f}")
    print(align_columns(("sentences/s", *names), rates))
    print()
    heads = [f"{name} {what}" for name in (QUIRE, QUANTIZED) for what in ("× torch", "× best other", "cosine")]
    print(align_columns(("ratios", *heads), ratios))


def _measure(name: str, lengths: tuple[int, ...], options: argparse.Namespace) -> dict[str, Results]:
    """Return the results of all engines by name, without the peers that failed."""
    home = home_folder(load())
    folder = write_encoder(home / "bench" / name, SHAPES[name])
    tokens = QUICK_TOKENS if options.quick else TOKENS[name]
    counts = tuple(max(8, tokens // length) for length in lengths)
    results = {}
    for engine, quantize in ((QUIRE, None), (QUANTIZED, "q8_0")):
        _say(f"{name}: {engine}")
        arguments = str(folder), list(lengths), list(counts), quantize
        results[engine], _ = run_in_child(run_quire, list[list[float]], *arguments)
    work = EncoderLoad(folder, SHAPES[name], lengths, counts, base.open("cpu").describe().num_threads)
    for engine, measure in MEASURE.items():
        if engine in options.peers:
            _say(f"{name}: {engine}")
            try:
                results[engine] = measure(work, home, _say)
            except (PeerUnavailable, PeerFailed) as error:
                _say(f"{error} Continuing without {engine}.")
    return results


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _rates(result: list[float] | None) -> str:
    return f"{result[0]:.1f} ({result[1]:.1f})" if result else NOTHING


def _ratios(found: Mapping[str, list[float]]) -> list[str]:
    """Return, for both of ours, the ratios to torch and to the best other, and the cosine to a peer's vector."""
    torch = found.get(TORCH)
    others = [each for name, each in found.items() if name not in (QUIRE, QUANTIZED, TORCH)]
    best = [max(each[i] for each in others) for i in range(2)] if others else None
    reference = torch or next(iter(others), None)
    cells = []
    for ours in (found[QUIRE], found[QUANTIZED]):
        cells += [_ratio(ours, torch), _ratio(ours, best), _cosine(ours, reference) if reference else NOTHING]
    return cells


def _ratio(ours: list[float], other: list[float] | None) -> str:
    return f"{ours[0] / other[0]:.2f} ({ours[1] / other[1]:.2f})" if other else NOTHING


def _cosine(one: list[float], other: list[float]) -> str:
    a, b = np.array(one[2:]), np.array(other[2:])
    return f"{a @ b / np.linalg.norm(a) / np.linalg.norm(b):.6f}"
