"""Transcripts as OpenAI's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from quire.speech.subtitles import to_srt, to_vtt
from quire.types.speech import Segment, Transcript

encode = msgspec.json.Encoder().encode
TEXT, JSON = "text/plain; charset=utf-8", "application/json"


class WholeForm(NamedTuple):
    """How a whole answer is written."""

    content_type: str
    whole: Callable[[Transcript], bytes]


def _json(found: Transcript) -> bytes:
    return encode({"text": found.text, "usage": _usage(found)})


def verbose(found: Transcript, *, has_segments: bool = True, has_words: bool = False) -> bytes:
    """With segments, words or both: empty lists if nothing was said."""
    facts = {"task": found.task, "language": found.language, "duration": found.duration, "text": found.text}
    segments = {"segments": [_segment(each) for each in found.segments]} if has_segments else {}
    words = {"words": [word._asdict() for each in found.segments for word in each.words]} if has_words else {}
    return encode({**facts, **segments, **words, "usage": _usage(found)})


def _segment(each: Segment) -> dict[str, Any]:
    return {
        "id": each.id,
        "seek": each.seek,
        "start": each.start,
        "end": each.end,
        "text": each.text,
        "tokens": list(each.tokens),
        "temperature": each.temperature,
        "avg_logprob": each.avg_logprob,
        "compression_ratio": each.compression_ratio,
        "no_speech_prob": each.no_speech_prob,
    }


def _usage(found: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": found.duration}


FORMS = {
    "json": WholeForm(JSON, _json),
    "verbose_json": WholeForm(JSON, verbose),
    "text": WholeForm(TEXT, lambda found: f"{found.text}\n".encode()),
    "srt": WholeForm(TEXT, lambda found: to_srt(found.segments).encode()),
    "vtt": WholeForm(TEXT, lambda found: to_vtt(found.segments).encode()),
}


def delta(segment: Segment) -> bytes:
    """A segment of a stream."""
    return _event({"type": "transcript.text.delta", "delta": segment.text})


def done(found: Transcript) -> bytes:
    """The end of a stream."""
    return _event({"type": "transcript.text.done", "text": found.text, "usage": _usage(found)})


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + encode(content) + b"\n\n"
