"""Transcription: what a client asks for, the rules by which a speech model's tokens are sampled, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.types.kinds import RequestKind
from quire.types.request import SamplingParams
from quire.types.source import EncoderInput
from quire.types.speech_rules import SpeechRules


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """How to transcribe one recording."""

    language: str | None = None  # a code such as "en"; None: it is detected
    translate: bool = False  # into English
    prompt: str = ""  # text before the recording: names and spellings to expect
    temperature: float | None = None  # None: 0, and higher ones if the text is repetitive or unlikely
    has_times: bool = True  # False: segments are not needed, if one window holds the recording
    has_words: bool = False  # segments have the times of their words
    max_tokens: int | None = None  # of one window; None: as many as the model allows
    ignore_end: bool = False  # exactly max_tokens for each window: for benchmarks


class SpeechRequest(NamedTuple):
    """One request to the engine."""

    source: EncoderInput
    prompt: tuple[int, ...]
    sampling: SamplingParams
    rules: SpeechRules
    kind: RequestKind = RequestKind.GENERATE  # or ALIGN: the prompt is followed by the text


class SpeechAnswer(NamedTuple):
    """Its answer: the tokens, and the log probability of each."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    rows: bytes = b""  # of ALIGN: queries of the tokens, then keys of the source


class SpokenWord(NamedTuple):
    """A word, with its time in the recording, in seconds."""

    word: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the text, with its time in the recording, in seconds."""

    id: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    seek: int  # first frame of its window: hundredths of a second
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[SpokenWord, ...] = ()  # if they were asked for


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of one recording."""

    text: str
    language: str  # a code such as "en"
    duration: float  # seconds of the recording
    task: str  # transcribe or translate
    segments: tuple[Segment, ...]
    num_tokens: int = 0  # that the model wrote
