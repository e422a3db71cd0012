"""The rules of a speech model rule out the tokens that transformers' processors do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from quire.sampling.speech import SpeechFilter
from quire.types.speech_rules import SpeechRules

pytestmark = pytest.mark.pure
VOCAB, END, FIRST = 60, 20, 30


def test_timestamps_follow_the_rules_of_transformers():
    import torch
    from transformers.generation import WhisperTimeStampLogitsProcessor

    config = SimpleNamespace(no_timestamps_token_id=FIRST - 1, eos_token_id=END, bos_token_id=END,
                             max_initial_timestamp_index=5)  # fmt: skip
    process = WhisperTimeStampLogitsProcessor(config, begin_index=2)
    rules = SpeechRules((FIRST - 1,), (), END, FIRST, 5)
    rng = np.random.default_rng(0)
    for _ in range(200):
        written: list[int] = []
        filter_ = SpeechFilter(rules, written)
        for _ in range(12):
            logits = (rng.standard_normal(VOCAB) * 2).astype(np.float32)
            found = logits.copy()
            filter_.apply(found)
            ids = torch.tensor([[1, 2, *written]])
            right = process(ids, torch.from_numpy(logits[None].copy()))[0].numpy()
            assert np.array_equal(np.isfinite(found), np.isfinite(right)), written
            allowed = np.flatnonzero(np.isfinite(found))
            token = int(rng.choice(allowed))
            written.append(token)
            filter_.add_token(token)
            if token == END:
                break


def test_suppressed_tokens_are_ruled_out():
    found = np.zeros(VOCAB, np.float32)
    rules = SpeechFilter(SpeechRules((3,), (4,)), [])
    rules.apply(found)
    assert not np.isfinite(found[[3, 4]]).any()
    rules.add_token(9)
    found = np.zeros(VOCAB, np.float32)
    rules.apply(found)
    assert np.isfinite(found[4]) and not np.isfinite(found[3])
