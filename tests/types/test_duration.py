"""Durations as flags spell them."""

from __future__ import annotations

import pytest

from quire.types.duration import seconds_of_flag
from quire.types.errors import InvalidRequest

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("text, seconds", [("-1", -1.0), ("0", 0.0), ("90", 90.0), ("5m", 300.0), ("-5m", -1.0)])
def test_a_plain_number_of_a_flag_is_seconds(text, seconds):
    assert seconds_of_flag(text, "keep_alive") == seconds


def test_what_is_no_duration_is_refused():
    with pytest.raises(InvalidRequest, match="'soon' is not a duration"):
        seconds_of_flag("soon", "keep_alive")
