"""Log-mel features are those of transformers' WhisperFeatureExtractor."""

from __future__ import annotations

import numpy as np
import pytest

from quire.engine.transcription import samples_of
from quire.speech.mel import MelFrontEnd
from quire.types.errors import InvalidRequest
from tests.speech.toy import spoken

pytestmark = pytest.mark.pure


def sounds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "speech": samples_of(spoken()),
        "whole window of noise": rng.standard_normal(480_000) * 0.1,
        "a moment": rng.standard_normal(300),
        "all but the end": rng.standard_normal(479_950),
        "silence": np.zeros(16_000),
    }


@pytest.mark.parametrize("num_mels", [80, 128])
def test_features_are_those_of_transformers(num_mels: int):
    from transformers import WhisperFeatureExtractor

    extract, front_end = WhisperFeatureExtractor(feature_size=num_mels), MelFrontEnd(num_mels)
    for name, samples in sounds().items():
        samples = samples.astype(np.float32)
        right = extract(samples, sampling_rate=16_000, return_tensors="np").input_features[0].T
        assert np.abs(front_end.features(samples) - right).max() < 1e-4, name


def test_a_front_end_that_differs_is_refused_by_its_key():
    with pytest.raises(InvalidRequest, match="sampling_rate = 8000"):
        MelFrontEnd.read({"sampling_rate": 8000})
    assert MelFrontEnd.read({"feature_size": 128, "chunk_length": 10}).window_frames == 1000
