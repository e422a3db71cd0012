"""Segments as subtitles: SubRip (srt) and WebVTT (vtt)."""

from __future__ import annotations

from collections.abc import Iterable

from quire.types.speech import Segment


def to_srt(segments: Iterable[Segment]) -> str:
    """Write the segments as SubRip."""
    cues = (
        f"{number}\n{_time(each.start, ',')} --> {_time(each.end, ',')}\n{_line(each.text)}\n\n"
        for number, each in enumerate(segments, 1)
    )
    return "".join(cues)


def to_vtt(segments: Iterable[Segment]) -> str:
    """Write the segments as WebVTT."""
    cues = (f"{_time(each.start, '.')} --> {_time(each.end, '.')}\n{_line(each.text)}\n\n" for each in segments)
    return "WEBVTT\n\n" + "".join(cues)


def _time(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds."""
    rest, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, rest = divmod(rest, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}{point}{thousandths:03}"


def _line(text: str) -> str:
    """The text of a cue. A blank line would end it, and an arrow would be read as a time."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line).replace("-->", "->")
