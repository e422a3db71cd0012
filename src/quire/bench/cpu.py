"""How fast a model runs on this CPU, in process: prompts, one stream, many streams, and the memory's own speed.

Prompts are random tokens, greedy, the end of text ignored, so that every run does the same work. `unique` is 256 tokens
in and 64 out with nothing shared, `shared` is 512 shared and 32 own tokens in, 64 out.
"""

from __future__ import annotations

import random
import resource
import statistics
import threading
import time

import numpy as np

from quire.bench.figure import Figure
from quire.config import home_folder, load
from quire.engine.llm import LLM
from quire.engine.text_side import TextSide
from quire.store.store import Store
from quire.types.request import SamplingParams
from quire.weights.checkpoint import open_checkpoint


def greedy(max_tokens: int) -> SamplingParams:
    """The same work in every run."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def run(model: str, num_streams: int = 32) -> list[Figure]:
    """All figures of one model."""
    opened, tokenized = _open(model)
    began = time.perf_counter()
    with LLM(model, max_context=2048, num_blocks=4096, max_rows=64) as llm:
        loaded = time.perf_counter() - began
        vocabulary = llm.client.ready.vocab_size
        chance = random.Random(0)

        def text(num_tokens: int) -> list[int]:
            return [chance.randrange(256, vocabulary) for _ in range(num_tokens)]

        prompt = statistics.median(_first_token(llm, text(512)) for _ in range(5))
        decode = statistics.median(_decode(llm, text(16)) for _ in range(5))
        unique = _streams(llm, [text(256) for _ in range(num_streams)])
        shared_text = text(512)
        shared = _streams(llm, [shared_text + text(32) for _ in range(num_streams)])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    bandwidth = read_bandwidth()
    return [
        Figure("open the file and read its header", opened * 1e3, "ms", 50.0),
        Figure("make the tokenizer", tokenized * 1e3, "ms"),
        Figure("open the model, ready for a request", loaded, "s"),
        Figure("prompt of 512 tokens, one stream", 512 / prompt, "tok/s"),
        Figure("decode, one stream", decode, "tok/s"),
        Figure(f"unique, {num_streams} streams, output", unique, "tok/s"),
        Figure(
            f"shared, {num_streams} streams, output", shared, "tok/s", note="the prefix is computed in this time too"
        ),
        Figure("read bandwidth that numpy reaches, all threads", bandwidth / 1e9, "GB/s"),
        Figure("peak resident memory", peak, "MB"),
    ]


def _open(model: str) -> tuple[float, float]:
    """Seconds to open the checkpoint, and to make its tokenizer: the best of five, the first of which imports."""
    path = Store(home_folder(load())).resolve(model)
    opened, tokenized = [], []
    for _ in range(5):
        began = time.perf_counter()
        checkpoint = open_checkpoint(path)
        opened.append(time.perf_counter() - began)
        TextSide.of(checkpoint)
        tokenized.append(time.perf_counter() - began - opened[-1])
    return min(opened), min(tokenized)


def _first_token(llm: LLM, prompt: list[int]) -> float:
    (completion,) = llm.generate([prompt], greedy(1))
    return completion.usage.first_token_seconds


def _decode(llm: LLM, prompt: list[int]) -> float:
    (completion,) = llm.generate([prompt], greedy(128))
    return completion.usage.tokens_per_second


def _streams(llm: LLM, prompts: list[list[int]]) -> float:
    """Output tokens a second, from the first submit to the last answer."""
    began = time.perf_counter()
    completions = llm.generate(prompts, greedy(64), progress=False)
    return sum(len(each.tokens) for each in completions) / (time.perf_counter() - began)


def read_bandwidth(num_threads: int = 2, megabytes: int = 256) -> float:
    """Bytes a second: every thread sums an array that no cache holds."""
    arrays = [np.ones(megabytes << 18, np.float32) for _ in range(num_threads)]
    best = 0.0
    for _ in range(3):
        threads = [threading.Thread(target=array.sum) for array in arrays]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, sum(array.nbytes for array in arrays) / (time.perf_counter() - began))
    return best
