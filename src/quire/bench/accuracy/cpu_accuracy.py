"""Measure the divergence of the CPU's fast path from float32: mean KL over 2,000 positions.

The reference is our float path, whose output equals that of transformers with the same weights. Both paths get the same
tokens in the same windows. Log-probabilities are clamped as those in llama-perplexity's files are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.bench.accuracy.divergence import (
    BLOCK,
    FIRST_COUNTED,
    NUM_COUNTED,
    WINDOW,
    clamp_log_probs,
    divergences,
    log_probabilities,
)
from quire.bench.accuracy.llama_perplexity import read_head, read_window
from quire.bench.load.sample_text import sample_text
from quire.devices import base
from quire.engine.model_files import read_model_text
from quire.models.draw import DrawnModel, draw
from quire.ops.batch import Batch, RowPart
from quire.text.model_text import ModelText
from quire.types.formats import AUTO
from quire.weights.checkpoint import open_checkpoint

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Divergence of one path from the float path."""

    mean_kl: float  # nats
    same_token: float  # share of positions with the same likeliest token


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The divergence of our fast path, and of the peer if it wrote its distributions."""

    ours: Divergence
    peer: Divergence | None
    num_positions: int
    error: float = 0.0  # standard error of the difference of the two means, over positions


def compare_accuracy(model: str, num_windows: int, peer_file: str | None) -> Accuracy:
    """Compare over windows of the sample text: those in the peer's file, or as our tokenizer encodes them."""
    checkpoint = open_checkpoint(Path(model))
    drawn, model_text = draw(checkpoint), read_model_text(checkpoint)
    if peer_file is None:
        tokens = model_text.encode(sample_text())[: num_windows * WINDOW]
        return _compare(drawn, model_text, np.array(tokens, np.int32).reshape(-1, WINDOW), None)
    with Path(peer_file).open("rb") as file:
        windows, vocab = read_head(file)
        return _compare(drawn, model_text, windows[:num_windows], (read_window(file, vocab) for _ in windows))


def sample_windows(model: str) -> Array:
    """Return the whole sample text in the model's tokens: int32 [windows, WINDOW]."""
    model_text = read_model_text(open_checkpoint(Path(model)))
    tokens = np.array(model_text.encode(sample_text()), np.int32)
    windows = tokens[: len(tokens) // WINDOW * WINDOW].reshape(-1, WINDOW)
    if model_text.tokenizer is not None and model_text.tokenizer.prefix:
        windows[:, 0] = model_text.tokenizer.prefix[0]
    return windows


def _compare(
    model: DrawnModel, model_text: ModelText, windows: Array, peer_windows: Iterator[Array] | None
) -> Accuracy:
    default = base.open("cpu").facts().kv_format(AUTO)
    exact, fast = _lower(model, "float", "f32"), _lower(model, "native", default)
    ours, peer = [], []
    for window in windows:
        tokens = window.tolist()
        if model_text.tokenizer is not None and model_text.tokenizer.prefix:
            tokens[0] = model_text.tokenizer.prefix[0]
        expected = log_probabilities(_logits(exact, tokens))
        ours.append(divergences(expected, clamp_log_probs(log_probabilities(_logits(fast, tokens)))))
        if peer_windows is not None:
            peer.append(divergences(expected, next(peer_windows)))
    if not peer:
        return Accuracy(_mean(ours), None, len(windows) * NUM_COUNTED)
    differences = (np.concatenate(ours) - np.concatenate(peer))[:, 0]
    error = float(differences.std() / len(differences) ** 0.5)
    return Accuracy(_mean(ours), _mean(peer), len(differences), error)


def _lower(model: DrawnModel, precision: base.Precision, kv_dtype: str) -> base.Program:
    limits = base.Limits(
        max_tokens=WINDOW, max_rows=1, max_logits=WINDOW, max_blocks=WINDOW // BLOCK, num_blocks=WINDOW // BLOCK
    )
    options = base.LoweringOptions(precision=precision)
    return base.open("cpu").lower(model.graph, model.weights, replace(limits, kv_dtype=kv_dtype), options)


def _logits(program: base.Program, tokens: list[int]) -> Array:
    part = RowPart(tokens, 0, range(WINDOW // BLOCK), num_logits=WINDOW - FIRST_COUNTED)
    logits = program.launch(Batch.of([part], BLOCK)).result().logits
    assert logits is not None
    return logits[:NUM_COUNTED]


def _mean(windows: list[Array]) -> Divergence:
    mean_kl, same_token = np.concatenate(windows).mean(0)
    return Divergence(float(mean_kl), float(same_token))
