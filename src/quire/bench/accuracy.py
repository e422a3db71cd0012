"""How far a fast path's distribution of the next token is from float32's: mean KL divergence over 2,000 positions.

The reference is our own float path, which writes what transformers writes from the same weights. Both sides see the
same tokens in the same windows, and count the second half of each, as llama-perplexity does. It saves them so:

    "_logits_"  int32 window, vocabulary, number of windows   int32 tokens[windows][window]
    then for each counted position: float32 step, float32 least, uint16 n[vocabulary, rounded up to an even number]

where step * n + least is a token's log-probability, held at 16 below the likeliest. Ours is held there too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from quire.bench.divergence import BLOCK, WINDOW, divergences, held, log_probabilities
from quire.bench.text import plain_text
from quire.devices import base
from quire.engine.model_files import read_model_text
from quire.models.draw import Model, draw
from quire.ops.batch import Batch, RowPart
from quire.text.model_text import ModelText
from quire.weights.checkpoint import open_checkpoint

Array = NDArray[Any]

FIRST = WINDOW // 2  # position that is counted
COUNTED = WINDOW - 1 - FIRST  # of a window: its last token predicts nothing that is there
MAGIC = b"_logits_"


@dataclass(frozen=True, slots=True)
class Divergence:
    """Of one path from the float path."""

    mean_kl: float  # nats
    same_token: float  # share of positions with the same likeliest token


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of our fast path, and of the peer's if it left its distributions."""

    ours: Divergence
    peer: Divergence | None
    num_positions: int
    error: float = 0.0  # standard error of the two means' difference, position by position


def compare(model: str, num_windows: int, peer_file: str | None) -> Accuracy:
    """Over windows of the text as the peer's file has them, or as our tokenizer makes them."""
    checkpoint = open_checkpoint(Path(model))
    drawn, model_text = draw(checkpoint), read_model_text(checkpoint)
    if peer_file is None:
        tokens = model_text.encode(plain_text())[: num_windows * WINDOW]
        return _compare(drawn, model_text, np.array(tokens, np.int32).reshape(-1, WINDOW), None)
    with Path(peer_file).open("rb") as saved:
        windows, vocab = read_head(saved)
        return _compare(drawn, model_text, windows[:num_windows], (read_window(saved, vocab) for _ in windows))


def windows_of(model: str) -> Array:
    """int32 [windows, WINDOW]: all of the text, as the model's tokenizer makes tokens of it."""
    model_text = read_model_text(open_checkpoint(Path(model)))
    tokens = np.array(model_text.encode(plain_text()), np.int32)
    windows = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
    if model_text.tokenizer is not None and model_text.tokenizer.prefix:
        windows[:, 0] = model_text.tokenizer.prefix[0]
    return windows


def _compare(model: Model, model_text: ModelText, windows: Array, peer: Iterator[Array] | None) -> Accuracy:
    exact, fast = _lower(model, "float", "f32"), _lower(model, "native", "f16")
    ours, theirs = [], []
    for window in windows:
        tokens = window.tolist()
        if model_text.tokenizer is not None and model_text.tokenizer.prefix:
            tokens[0] = model_text.tokenizer.prefix[0]
        expected = log_probabilities(_logits(exact, tokens))
        ours.append(divergences(expected, held(log_probabilities(_logits(fast, tokens)))))
        if peer is not None:
            theirs.append(divergences(expected, next(peer)))
    if not theirs:
        return Accuracy(_mean(ours), None, len(windows) * COUNTED)
    differences = (np.concatenate(ours) - np.concatenate(theirs))[:, 0]
    error = float(differences.std() / len(differences) ** 0.5)
    return Accuracy(_mean(ours), _mean(theirs), len(differences), error)


def _lower(model: Model, precision: str, kv_dtype: str) -> base.Program:
    limits = base.Limits(
        max_tokens=WINDOW, max_rows=1, max_logits=WINDOW, max_blocks=WINDOW // BLOCK, num_blocks=WINDOW // BLOCK
    )
    lower: Any = base.open("cpu").lower  # the precision is a choice that this device alone has
    program: base.Program = lower(model.graph, model.weights, replace(limits, kv_dtype=kv_dtype), precision=precision)
    return program


def _logits(program: base.Program, tokens: list[int]) -> Array:
    part = RowPart(tokens, 0, range(WINDOW // BLOCK), num_logits=WINDOW - FIRST)
    logits = program.launch(Batch.of([part], BLOCK)).result().logits
    assert logits is not None
    return logits[:COUNTED]


def _mean(of_windows: list[Array]) -> Divergence:
    mean_kl, same_token = np.concatenate(of_windows).mean(0)
    return Divergence(float(mean_kl), float(same_token))


def read_head(saved: BinaryIO) -> tuple[Array, int]:
    """The windows' tokens, int32 [windows, WINDOW], and the size of the vocabulary."""
    if saved.read(len(MAGIC)) != MAGIC:
        raise ValueError("not a file of llama-perplexity's distributions")
    window, vocab, num_windows = struct.unpack("<3i", saved.read(12))
    if window != WINDOW:
        raise ValueError(f"the file has windows of {window} tokens instead of {WINDOW}")
    tokens = np.frombuffer(saved.read(4 * WINDOW * num_windows), "<i4")
    return tokens.reshape(num_windows, WINDOW), vocab


def read_window(saved: BinaryIO, vocab: int) -> Array:
    """Log-probabilities of one window's counted positions: float32 [COUNTED, vocabulary]."""
    width = 4 + (vocab + 1) // 2 * 2  # uint16s of a position
    rows = np.frombuffer(saved.read(2 * width * COUNTED), "<u2").reshape(COUNTED, width)
    step, least = np.ascontiguousarray(rows[:, :4]).view("<f4").T[:, :, None]  # [COUNTED, 1] each
    out: Array = rows[:, 4 : 4 + vocab] * step + least
    return out
