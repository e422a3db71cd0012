"""A window's tokens are cut at timestamps, and written as subtitles."""

from __future__ import annotations

import pytest

from quire.speech.mel import MelFrontEnd
from quire.speech.model import SpeechModel
from quire.speech.subtitles import to_srt, to_vtt
from quire.speech.transcribe import cut_segments
from quire.types.speech import Segment

pytestmark = pytest.mark.pure
FIRST, END, SECOND = 120, 100, 16_000


def model() -> SpeechModel:
    return SpeechModel(MelFrontEnd(), None, {"<|notimestamps|>": FIRST - 1, "<|endoftext|>": END}, {}, (), (), 50, 448)  # type: ignore[arg-type]


def at(seconds: float) -> int:
    return FIRST + round(seconds * 50)


def test_whole_segments_are_kept_and_the_rest_is_left_to_the_next_window():
    tokens = [at(0), 1, 2, at(1.5), at(1.5), 3, at(2.0), at(2.0), 4, 5]
    pieces, used = cut_segments(tokens, 30 * SECOND, model())
    assert pieces == [(0.0, 1.5, (1, 2)), (1.5, 2.0, (3,))] and used == 2 * SECOND


def test_a_text_that_ends_with_one_timestamp_uses_the_whole_window():
    pieces, used = cut_segments([at(0), 1, at(1.0), at(1.0), 2, at(3.0), END], 30 * SECOND, model())
    assert [piece[2] for piece in pieces] == [(1,), (2,)] and used == 30 * SECOND


def test_without_a_whole_segment_the_window_is_one():
    assert cut_segments([1, 2, 3, END], 5 * SECOND, model()) == ([(0.0, 5.0, (1, 2, 3))], 5 * SECOND)
    assert cut_segments([at(0), 1, 2], 5 * SECOND, model()) == ([(0.0, 5.0, (1, 2))], 5 * SECOND)


def test_times_stay_within_the_recording_and_every_window_advances():
    pieces, used = cut_segments([at(0), 1, at(29.0), at(29.0), 2], 4 * SECOND, model())
    assert pieces == [(0.0, 4.0, (1,))] and used == 4 * SECOND
    assert cut_segments([at(0), at(0), 1], 4 * SECOND, model())[1] == 4 * SECOND


def segment(number: int, start: float, end: float, text: str) -> Segment:
    return Segment(number, start, end, text, (), 0, 0.0, 0.0, 0.0, 0.0)


def test_subtitles():
    segments = [segment(0, 0.0, 1.5, " Hello --> world"), segment(1, 3661.25, 3662.0, "two\n\nlines")]
    assert to_srt(segments) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello -> world\n\n2\n01:01:01,250 --> 01:01:02,000\ntwo\nlines\n\n"
    )
    assert to_vtt(segments[:1]) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello -> world\n\n"
