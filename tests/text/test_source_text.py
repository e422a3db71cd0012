"""The text side of models with an encoder."""

from __future__ import annotations

import logging

import pytest

from quire.text.source_text import read_source_text

pytestmark = pytest.mark.pure

CONFIG = {"is_encoder_decoder": True, "decoder_start_token_id": 2}


def test_settings_of_generation_that_are_not_applied_are_named(caplog: pytest.LogCaptureFixture) -> None:
    generation = {"num_beams": 4, "no_repeat_ngram_size": 3, "min_length": 56, "forced_bos_token_id": 0}
    with caplog.at_level(logging.WARNING, "quire.text"):
        found = read_source_text(CONFIG, generation)
    assert found is not None and found.start == (2, 0)
    assert "num_beams 4, no_repeat_ngram_size 3, min_length 56" in caplog.text


def test_neutral_settings_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "quire.text"):
        read_source_text(CONFIG, {"num_beams": 1, "min_length": 0, "no_repeat_ngram_size": None})
    assert not caplog.text
