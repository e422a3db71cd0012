"""Divergence from float32: of distributions in the peer's file, and of our fast path."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest

from quire.bench.accuracy.cpu_accuracy import compare_accuracy
from quire.bench.accuracy.divergence import NUM_COUNTED, WINDOW, clamp_log_probs, divergences, log_probabilities
from quire.bench.accuracy.llama_perplexity import MAGIC, read_head, read_window
from quire.bench.load.sample_text import sample_text, word_tokens
from quire.engine.model_files import read_model_text
from quire.weights.checkpoint import open_checkpoint
from tests.devices.cpu.programs import HAS_NATIVE

VOCAB = 101  # odd: rows are padded


def perplexity_file(tokens: np.ndarray, log_probs: list[np.ndarray]) -> bytes:
    """Return what llama-perplexity writes."""
    parts = [MAGIC, struct.pack("<3i", WINDOW, VOCAB, len(tokens)), tokens.astype("<i4").tobytes()]
    for row in np.concatenate(log_probs):
        minimum = max(row.min(), row.max() - 16)
        step = (row.max() - minimum) / 65535
        numbers = np.maximum(np.rint((row - minimum) / step), 0).astype("<u2")
        parts += [struct.pack("<2f", step, minimum), numbers.tobytes(), bytes(2 * (VOCAB % 2))]
    return b"".join(parts)


@pytest.mark.pure
def test_the_peers_file_is_read():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (2, WINDOW))
    written = [clamp_log_probs(log_probabilities(rng.normal(0, 4, (NUM_COUNTED, VOCAB)).astype("f4"))) for _ in tokens]
    file = io.BytesIO(perplexity_file(tokens, written))
    windows, vocab = read_head(file)
    assert vocab == VOCAB and np.array_equal(windows, tokens)
    for expected in written:
        assert np.abs(read_window(file, vocab) - expected).max() < 2.5e-4
    assert file.read() == b""


@pytest.mark.pure
@pytest.mark.parametrize("head", [b"somethin", MAGIC + struct.pack("<3i", 256, VOCAB, 1)])
def test_another_file_is_refused(head):
    with pytest.raises(ValueError, match=r"instead of 512|not a file"):
        read_head(io.BytesIO(head + bytes(64)))


@pytest.mark.pure
def test_divergence_is_the_kullback_leibler_divergence():
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    ((kl, same),) = divergences(np.log(p).astype("f4"), np.log(q).astype("f4"))
    assert kl == pytest.approx(0.25 * np.log(2), rel=1e-5) and not same
    ((kl, same),) = divergences(np.log(p), np.log(p))
    assert kl == pytest.approx(0, abs=1e-12) and same


@pytest.mark.pure
def test_every_python_has_enough_text():
    assert len(sample_text()) > 20 * WINDOW * 8


@pytest.mark.e2e
def test_prompts_are_made_of_whole_words(model_file):
    tokenizer = read_model_text(open_checkpoint(model_file)).tokenizer
    words = word_tokens(tokenizer)
    assert len(words) > 500 and " the" in {tokenizer.decode([token]) for token in words}
    assert all(tokenizer.decode([token])[1:].isalpha() for token in words)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(not HAS_NATIVE, reason="the extension was not built")
def test_our_fast_path_is_near_float32(model_file):
    accuracy = compare_accuracy(str(model_file), 1, None)
    assert accuracy.num_positions == NUM_COUNTED and accuracy.peer is None
    assert 0 < accuracy.ours.mean_kl < 0.02 and accuracy.ours.same_token > 0.9
