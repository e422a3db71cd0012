"""Embeds sentences with Quire, or with sentence-transformers: each runs in a process of its own."""

from __future__ import annotations

import time
from importlib import import_module

import numpy as np

from quire.bench.engines.encoder_model import NUM_WORDS

WARM_UP = 8  # sentences
BATCH = 32  # sentences that other engines get at once


def sentences(length: int, count: int) -> list[str]:
    """Return random sentences of so many tokens, two of which frame the words."""
    rng = np.random.default_rng(length)
    return [" ".join(f"w{number}" for number in rng.integers(0, NUM_WORDS, length - 2)) for _ in range(count)]


def run_quire(folder: str, lengths: list[int], counts: list[int], quantize: str | None) -> list[list[float]]:
    """Return, for each length, sentences per second of time and of processor time, and the first vector."""
    llm = import_module("quire").LLM(folder, quantize=quantize)
    found = []
    for length, count in zip(lengths, counts, strict=True):
        texts = sentences(length, count)
        llm.embed(texts[:WARM_UP])
        began, busy = time.perf_counter(), time.process_time()
        vectors = llm.embed(texts)
        rates = (count / (time.perf_counter() - began), count / (time.process_time() - busy))
        found.append([*rates, *vectors[0].vector.tolist()])
    return found


def run_sentence_transformers(folder: str, lengths: list[int], counts: list[int]) -> list[list[float]]:
    """Return the same, computed by sentence-transformers, with as many threads as it takes."""
    model = import_module("sentence_transformers").SentenceTransformer(folder, device="cpu")
    found = []
    for length, count in zip(lengths, counts, strict=True):
        texts = sentences(length, count)
        model.encode(texts[:WARM_UP])
        began, busy = time.perf_counter(), time.process_time()
        vectors = model.encode(texts, batch_size=BATCH)
        rates = (count / (time.perf_counter() - began), count / (time.process_time() - busy))
        found.append([*rates, *vectors[0].tolist()])
    return found
