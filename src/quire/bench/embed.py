"""`quire bench embed [NAME]`: sentences embedded a second on this CPU, beside sentence-transformers on torch.

NAME is a shape: minilm-l6 or bge-base; without it, both. Both engines have the same random weights in float32 and the
same sentences, in one run; Quire also with matrices of 8 bits (`quantize q8_0`). Rates are of time; in brackets, of
processor time, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from quire.bench.engines.child_process import run_in_child
from quire.bench.engines.encoder_model import SHAPES, write_encoder
from quire.bench.engines.encoder_runs import run_quire, run_sentence_transformers
from quire.bench.machine.description import describe_machine
from quire.bench.page.text_table import align_columns
from quire.config import home_folder, load

LENGTHS = (16, 128, 512)
TOKENS = {"minilm-l6": 24_000, "bge-base": 6_000}  # of the sentences of each length
QUICK_TOKENS = 600
HEADS = ("model, tokens", "quire", "quire q8_0", "torch", "× torch", "q8_0 × torch", "cosine", "q8_0 cosine")


def main(options: argparse.Namespace) -> None:
    """Print the rates as a table."""
    if options.model and options.model not in SHAPES:
        raise SystemExit(f"There is no shape {options.model!r}. There are: {', '.join(SHAPES)}.")
    lengths = LENGTHS[:1] if options.quick else LENGTHS
    rows = [row for name in ((options.model,) if options.model else SHAPES) for row in _rows(name, lengths, options)]
    print(describe_machine())
    print(align_columns(HEADS, rows))


def _rows(name: str, lengths: tuple[int, ...], options: argparse.Namespace) -> list[tuple[str, ...]]:
    folder = str(write_encoder(home_folder(load()) / "bench" / name, SHAPES[name]))
    tokens = QUICK_TOKENS if options.quick else TOKENS[name]
    sizes = list(lengths), [max(8, tokens // length) for length in lengths]
    print(f"{name}: quire, quire q8_0, sentence-transformers …", file=sys.stderr, flush=True)
    ours, _ = run_in_child(run_quire, list[list[float]], folder, *sizes, None)
    fast, _ = run_in_child(run_quire, list[list[float]], folder, *sizes, "q8_0")
    theirs, _ = run_in_child(run_sentence_transformers, list[list[float]], folder, *sizes)
    rows = []
    for length, one, two, other in zip(lengths, ours, fast, theirs, strict=True):
        rates = [f"{each[0]:.1f} ({each[1]:.1f})" for each in (one, two, other)]
        ratios = [f"{each[0] / other[0]:.2f} ({each[1] / other[1]:.2f})" for each in (one, two)]
        rows.append((f"{name}, {length}", *rates, *ratios, _cosine(one, other), _cosine(two, other)))
    return rows


def _cosine(one: list[float], other: list[float]) -> str:
    a, b = np.array(one[2:]), np.array(other[2:])
    return f"{a @ b / np.linalg.norm(a) / np.linalg.norm(b):.6f}"
