"""Drives transcriptions: each request that a transcription yields goes to the engine, and its answer back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from quire.engine.client import Client
from quire.engine.messages import Failed
from quire.speech.audio import checked_samples, read_audio
from quire.speech.model import SpeechModel
from quire.speech.transcribe import Conversation, transcribe
from quire.types.errors import InvalidRequest
from quire.types.output import Finished, Tokens
from quire.types.request import GenerateRequest
from quire.types.speech import Segment, SpeechAnswer, SpeechOptions, SpeechRequest, Transcript

AT_ONCE = 8  # recordings
_NUMBERS = itertools.count()


def transcribe_all(
    client: Client, model: SpeechModel, recordings: Sequence[Any], options: SpeechOptions
) -> list[Transcript]:
    """Transcribe recordings together, in their order: paths, bytes of files, or samples with their rate."""

    def run(recording: Any) -> Transcript:
        return drive(client, transcribe(model, samples_of(recording), options))

    if len(recordings) == 1:
        return [run(recordings[0])]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(run, recordings))


def drive(client: Client, task: Conversation, heard: Callable[[Segment], object] = lambda segment: None) -> Transcript:
    """Run one transcription in this thread. `heard` is called with each segment."""
    answer: SpeechAnswer | None = None
    try:
        while True:
            asked = task.send(answer)
            answer = None
            if isinstance(asked, SpeechRequest):
                answer = _answer(client.stream(as_request(asked, f"s{next(_NUMBERS)}")))
            else:
                heard(asked)
    except StopIteration as ended:
        transcript: Transcript = ended.value
        return transcript


def as_request(asked: SpeechRequest, id: str) -> GenerateRequest:
    """The engine's request."""
    rules = asked.rules
    ends = (rules.end,) if rules.end else ()
    return GenerateRequest(id, asked.prompt, asked.sampling, ends, source=asked.source, speech=rules, kind=asked.kind)


def _answer(news: Iterable[Any]) -> SpeechAnswer:
    tokens: list[int] = []
    logprobs: list[float] = []
    rows = b""
    for each in news:
        if isinstance(each, Failed):
            raise each.error
        if isinstance(each, Tokens | Finished):
            tokens += each.tokens
            logprobs += [scored.logprob for scored in each.logprobs]
            rows = each.vector if isinstance(each, Finished) else rows
    return SpeechAnswer(tuple(tokens), tuple(logprobs), rows)


def samples_of(recording: Any) -> np.ndarray[Any, Any]:
    """The samples of a path, of the bytes of a file, or of (samples, rate)."""
    if isinstance(recording, str | Path):
        path = Path(recording)
        if not path.is_file():
            raise InvalidRequest(f"There is no audio file {str(recording)!r}.", field="audio")
        return read_audio(path.read_bytes(), field="audio")
    if isinstance(recording, bytes):
        return read_audio(recording, field="audio")
    is_pair = isinstance(recording, tuple) and len(recording) == 2 and isinstance(recording[1], int)
    if is_pair and isinstance(recording[0], np.ndarray) and recording[0].ndim == 1 and len(recording[0]):
        return checked_samples(*recording, field="audio")
    raise InvalidRequest("audio must be a path, the bytes of a sound file, or (samples, rate) with a numpy array.",
                         field="audio")  # fmt: skip
