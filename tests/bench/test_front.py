"""The benchmark of the front streams what it says that it streams."""

import pytest

from quire.bench import front

pytestmark = pytest.mark.e2e


def test_every_token_of_every_stream_arrives(model_file, monkeypatch):
    monkeypatch.setattr(front, "NUM_STREAMS", 3)
    measured = front._measure(str(model_file), "300", 20)
    assert 0.5 < measured.events_per_token < 1.2 and measured.tokens_per_second > 0
