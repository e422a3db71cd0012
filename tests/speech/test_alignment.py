"""Words and their times, against transformers' functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire.speech.alignment import first_steps, join_words, median_filter

pytestmark = pytest.mark.pure
whisper = pytest.importorskip("transformers.models.whisper.generation_whisper")
PIECES = [" Hello", ",", " wor", "ld", "!", " (", "so", ")", " it", "'", "s", " -", " “", "ok", "”", "."]
BYTES = [b" caf", b"\xc3", b"\xa9", b" \xe6\x97", b"\xa5", b"\xe6\x9c\xac", b"\xff", b" end"]


class Coder:
    """Tokens are places in a list of bytes."""

    eos_token_id = 1000

    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    def decode(self, tokens: Any, **options: Any) -> str:
        return b"".join(self._pieces[token] for token in tokens).decode("utf-8", "replace")


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (7, 5), (5, 40), (23, 60)])
@pytest.mark.parametrize("has_ties", [False, True])
def test_the_way_is_that_of_transformers(shape, has_ties):
    costs = np.random.default_rng(sum(shape)).standard_normal(shape)
    costs = np.round(costs) if has_ties else costs
    tokens, steps = whisper._dynamic_time_warping(costs)
    jumps = np.pad(np.diff(tokens), (1, 0), constant_values=1).astype(bool)
    assert first_steps(costs) == steps[jumps].tolist()


@pytest.mark.parametrize("width", [1, 3, 7])
@pytest.mark.parametrize("steps", [2, 4, 50])
def test_the_filter_is_that_of_transformers(width, steps):
    import torch

    x = np.random.default_rng(width).standard_normal((2, 3, steps)).astype(np.float32)
    assert np.array_equal(median_filter(x, width), whisper._median_filter(torch.tensor(x), width).numpy())


@pytest.mark.parametrize("pieces", [PIECES, BYTES])
@pytest.mark.parametrize("language", [("en", "english"), ("ja", "japanese")])
def test_words_are_those_of_transformers(pieces, language):
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

    tokens, spans = list(range(len(pieces))), [(at / 10, at / 10 + 0.1) for at in range(len(pieces))]
    found = join_words(tokens, spans, Coder(pieces), language[0])
    texts, _, places = _combine_tokens_into_words(Coder(pieces), tokens, language[1])
    expected = [(text.strip(), spans[each[0]][0], spans[each[-1]][1]) for text, each in zip(texts, places, strict=True)]
    assert [tuple(each) for each in found] == [each for each in expected if each[0]]


def test_no_token_is_lost_at_the_end_of_a_broken_text():
    found = join_words([0, 1], [(0.0, 1.0), (1.0, 2.0)], Coder([b" a", b"\xc3"]), "en")
    assert found[-1].end == 2.0
