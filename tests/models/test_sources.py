"""Encoder-decoder models: logits are those of transformers, whatever sources and texts share a step."""

from __future__ import annotations

import numpy as np
import pytest

from quire.ops.registry import relative_error
from tests.models.sources import KINDS, SourceSession, make_source_toy, random_source

pytestmark = pytest.mark.device
LENGTH = {"whisper": 100}  # frames of a source; others are counted in tokens
TEXTS = ([3, 9, 17, 40, 5], [3, 8], [3, *range(20, 60)])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("fuse", [False, True])
def test_logits_are_those_of_transformers(name: str, fuse: bool):
    toy = make_source_toy(name)
    session = SourceSession(toy.draw(), fuse=fuse)
    sources = [random_source(name, LENGTH.get(name, 5 + 31 * seed), seed) for seed in range(2)]
    for number, source in enumerate(sources):
        session.encode(number, source)
    texts = [(0, TEXTS[0]), (1, TEXTS[1]), (0, TEXTS[2])]
    together = session.logits(*texts)
    for (number, tokens), found in zip(texts, together, strict=True):
        assert relative_error(found, toy.expected_logits(sources[number], tokens)) < 1e-4
    alone = [session.logits(text)[0] for text in texts]
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
