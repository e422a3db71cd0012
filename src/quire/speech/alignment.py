"""Computes word timestamps: the attention of some decoder heads gives the time at which each token ends.

As in Whisper, the attention of each head is normalized over the tokens, smoothed over time by a median filter, and
averaged; the cheapest monotonic path through tokens and time (dynamic time warping) gives the time of each token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.speech.model import SECONDS_PER_STEP, SpeechModel, TextCoder
from quire.types.speech import SpokenWord

Array = NDArray[Any]
WITHOUT_SPACES = frozenset(("zh", "ja", "th", "lo", "my", "yue"))
OPENING, CLOSING = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # joined to the next word, to the previous one
ALONE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"  # separate words until OPENING and CLOSING are joined
UNKNOWN = "\ufffd"


def end_times(rows: bytes, num_prompt: int, num_tokens: int, num_steps: int, model: SpeechModel) -> list[float]:
    """Return the time at which each token of a text ends, in seconds from the start of its window.

    `rows`: queries of the prompt and the text, then keys of the sound. `num_steps`: of the sound, without the silence
    that fills its window.
    """
    numbers = np.frombuffer(rows, np.float32).reshape(-1, model.num_aligned, model.head_dim)
    queries, keys = numbers[num_prompt : num_prompt + num_tokens], numbers[num_prompt + num_tokens :]
    scores = np.einsum("thd,shd->hts", queries, keys, optimize=True) * np.float32(model.head_dim**-0.5)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (shares / shares.sum(axis=-1, keepdims=True))[..., : max(1, num_steps)]
    spread = weights.std(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        normed = np.nan_to_num((weights - weights.mean(axis=1, keepdims=True)) / spread)
    matrix = median_filter(normed, model.median_width).mean(axis=0)
    return [float(step * SECONDS_PER_STEP) for step in first_steps(-matrix.astype(np.float64))]


def median_filter(x: Array, width: int) -> Array:
    """Return the running median along the last axis, with the ends mirrored."""
    half = width // 2
    if x.shape[-1] <= half:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    medians: Array = np.partition(windows, half, axis=-1)[..., half]
    return medians


def first_steps(costs: Array) -> list[int]:
    """Return, for each row of `costs` [tokens, steps], the first step of the cheapest path through all rows.

    From each cell the path goes to the next step, the next token, or both. Cells on one antidiagonal are computed at
    once. Sums are float32, and ties take the next step, as in other implementations.
    """
    num_tokens, num_steps = costs.shape
    sums = np.full((num_tokens + 1, num_steps + 1), np.inf, np.float32)
    came = np.full(sums.shape, 2, np.int8)  # 0: from both before, 1: from the token before, 2: from the step before
    came[1:, 0] = 1
    sums[0, 0] = 0.0
    for total in range(2, num_tokens + num_steps + 1):
        i = np.arange(max(1, total - num_steps), min(num_tokens, total - 1) + 1)
        j = total - i
        both, token, step = sums[i - 1, j - 1], sums[i - 1, j], sums[i, j - 1]
        by_both, by_token = (both < token) & (both < step), (token < both) & (token < step)
        least = np.where(by_both, both, np.where(by_token, token, step))
        sums[i, j] = costs[i - 1, j - 1] + least
        came[i, j] = np.where(by_both, 0, np.where(by_token, 1, 2))
    firsts, at_token, at_step = [0] * num_tokens, num_tokens, num_steps
    while at_token > 0 or at_step > 0:
        if at_token > 0:
            firsts[at_token - 1] = at_step - 1
        way = came[at_token, at_step]
        at_token, at_step = at_token - (way != 2), at_step - (way != 1)
    return [max(0, step) for step in firsts]


def join_words(
    tokens: Sequence[int], spans: Sequence[tuple[float, float]], coder: TextCoder, language: str
) -> tuple[SpokenWord, ...]:
    """Join the tokens of a text into words, with the time of each."""
    groups = _characters(tokens, coder)
    if language not in WITHOUT_SPACES:
        groups = _by_spaces(groups)
    words = _with_punctuation(groups)
    return tuple(SpokenWord(text.strip(), spans[places[0]][0], spans[places[-1]][1]) for text, places in words)


Group = tuple[str, list[int]]  # a text, and the places of its tokens


def _characters(tokens: Sequence[int], coder: TextCoder) -> list[Group]:
    """Return the smallest groups of tokens that decode to whole characters."""
    whole, found, held, at = coder.decode(tokens), list[Group](), list[int](), 0
    for place in range(len(tokens)):
        held.append(place)
        text = coder.decode([tokens[each] for each in held])
        broken = text.find(UNKNOWN)
        if broken < 0 or at + broken >= len(whole) or whole[at + broken] == UNKNOWN:
            found.append((text, held))
            held, at = [], at + len(text)
    if held and found:
        found[-1][1].extend(held)
    return found


def _by_spaces(groups: Iterable[Group]) -> list[Group]:
    words: list[Group] = []
    for text, places in groups:
        if not words or text.startswith(" ") or text.strip() in ALONE:
            words.append((text, list(places)))
        else:
            words[-1] = (words[-1][0] + text, words[-1][1] + places)
    return words


def _with_punctuation(words: Sequence[Group]) -> list[Group]:
    """Join opening punctuation to the next word, and closing punctuation to the previous word."""
    behind: list[Group] = []
    for text, places in reversed(words):
        if behind and text.startswith(" ") and text.strip() in OPENING:
            behind[-1] = (text + behind[-1][0], places + behind[-1][1])
        else:
            behind.append((text, places))
    joined: list[Group] = []
    for text, places in reversed(behind):
        if joined and not joined[-1][0].endswith(" ") and text in CLOSING:
            joined[-1] = (joined[-1][0] + text, joined[-1][1] + places)
        else:
            joined.append((text, places))
    return [each for each in joined if each[0].strip()]
