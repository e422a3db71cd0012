"""Transcribes a recording window by window, as a generator: it yields requests for the engine and takes their answers.

The driver, which may be synchronous or not, sends the `SpeechAnswer` of each `SpeechRequest`; a finished `Segment` is
yielded too, and answered with None. The generator returns the `Transcript`. A window of 30 s begins where the last
whole segment of the one before it ended, so no word is cut.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import exp
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.speech.alignment import end_times, join_words
from quire.speech.mel import SAMPLE_RATE
from quire.speech.model import PREVIOUS, SECONDS_PER_STEP, START, TRANSCRIBE, TRANSLATE, SpeechModel
from quire.types.errors import InvalidRequest
from quire.types.kinds import RequestKind
from quire.types.request import SamplingParams
from quire.types.source import EncoderInput
from quire.types.speech import Segment, SpeechAnswer, SpeechOptions, SpeechRequest, Transcript
from quire.types.speech_rules import SpeechRules

Array = NDArray[Any]
FRAMES_PER_TOKEN = 2
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # tried in this order, as in Whisper's own program
MAX_RATIO, LEAST_MEAN, MAX_SILENCE = 2.4, -1.0, 0.6  # compression ratio, mean logprob, no-speech probability
SEED = 0  # the same recording has the same text
Conversation = Generator[SpeechRequest | Segment, SpeechAnswer | None, Transcript]


def transcribe(model: SpeechModel, samples: Array, options: SpeechOptions) -> Conversation:
    """Transcribe samples of 16 kHz. Options that the model does not support are refused before the first request."""
    task = _Task.of(model, options, is_long=len(samples) > model.front_end.window_samples)
    seek, segments, texts, num_tokens = 0, list[Segment](), list[str](), 0  # seek: in samples
    language = options.language
    while seek < len(samples):
        window = samples[seek : seek + model.front_end.window_samples]
        source = _source(model, window)
        if language is None:
            language = yield from _detect(model, source)
        heard = yield from hear(task, source, language)
        num_tokens += heard.num_tokens
        tokens = () if heard.is_silent else heard.answer.tokens
        pieces, used = cut_segments(tokens, len(window), model) if task.has_times and tokens else ([], len(window))
        spans = iter((yield from _align(task, heard, len(window), language)) if options.has_words and pieces else ())
        for start, end, part in pieces:
            text, own = model.coder.decode(part), list(islice(spans, len(part)))
            if text.strip():
                at = seek / SAMPLE_RATE
                words = join_words(part, [(at + a, at + b) for a, b in own], model.coder, language) if own else ()
                facts = (heard.temperature, heard.mean, compression(text), heard.silence, words)
                hundredths = seek * 100 // SAMPLE_RATE
                segments.append(Segment(len(segments), at + start, at + end, text, part, hundredths, *facts))
                texts.append(text)
                yield segments[-1]
        if not task.has_times:
            texts.append(model.coder.decode([token for token in tokens if token < model.end]))
        seek += max(used, model.front_end.hop * FRAMES_PER_TOKEN)
    duration = len(samples) / SAMPLE_RATE
    name = "translate" if options.translate else "transcribe"
    return Transcript("".join(texts).strip(), language or "en", duration, name, tuple(segments), num_tokens)


@dataclass(frozen=True, slots=True)
class _Task:
    """The options and the prompt that all windows of a recording share."""

    model: SpeechModel
    options: SpeechOptions
    before: tuple[int, ...]  # tokens of the client's prompt
    has_times: bool

    @classmethod
    def of(cls, model: SpeechModel, options: SpeechOptions, is_long: bool) -> _Task:
        if options.language is not None and model.is_multilingual:
            model.language_token(options.language)
        elif options.language not in (None, "en") or (options.translate and not model.is_multilingual):
            asked = "translate" if options.translate else f"transcribe the language {options.language!r}"
            raise InvalidRequest(f"This model supports only English: it cannot {asked}.", field="language")
        before: tuple[int, ...] = ()
        if options.prompt.strip():
            if PREVIOUS not in model.special:
                raise InvalidRequest("This model has no token for a prompt.", field="prompt")
            text = model.coder.encode(f" {options.prompt.strip()}", add_bos=False, add_eos=False)
            most = model.max_text // 2 - 1
            before = (model.special[PREVIOUS], *list(text)[-most:])
        if options.has_words and not model.num_aligned:
            raise InvalidRequest(
                "This model's generation_config.json has no alignment_heads, which word timestamps need: use segment "
                "timestamps.",
                field="timestamp_granularities",
            )
        return cls(model, options, before, options.has_times or options.has_words or is_long)

    def request(self, source: EncoderInput, language: str | None, temperature: float) -> SpeechRequest:
        """Return the request for the text of a window."""
        model, special = self.model, self.model.special
        prompt = [*self.before, special[START]]
        if model.is_multilingual:
            prompt += [model.language_token(language or "en"),
                       special[TRANSLATE if self.options.translate else TRANSCRIBE]]  # fmt: skip
        if not self.has_times:
            prompt.append(model.first_timestamp - 1)
        rules = SpeechRules(model.suppressed, model.suppressed_first, model.end)
        unwritten = set(special.values()) - {model.end}
        rules = replace(rules, suppressed=tuple(sorted({*model.suppressed, *unwritten})))
        if self.has_times:
            rules = replace(rules, first_timestamp=model.first_timestamp, max_initial=model.max_initial)
        most = min(model.max_text // 2, model.max_text - len(prompt))
        sampling = SamplingParams(
            temperature=temperature,
            seed=SEED if temperature else None,
            max_tokens=min(most, self.options.max_tokens or most),
            logprobs=0,
            ignore_eos=self.options.ignore_end,
            speculate="off",
        )
        return SpeechRequest(source, tuple(prompt), sampling, rules)


class Heard(NamedTuple):
    """The text of a window."""

    asked: SpeechRequest
    answer: SpeechAnswer
    temperature: float
    silence: float  # the probability that there is no speech
    ratio: float  # of compression
    num_tokens: int = 0  # that the model wrote, in all attempts
    is_silent: bool = False  # there is no speech: the model's text is dropped

    @property
    def mean(self) -> float:
        """Return the mean log probability of its tokens."""
        return sum(self.answer.logprobs) / max(len(self.answer.logprobs), 1)

    @property
    def is_good(self) -> bool:
        """Return whether the text is likely enough and not repetitive."""
        return self.ratio <= MAX_RATIO and self.mean >= LEAST_MEAN


def hear(
    task: _Task, source: EncoderInput, language: str | None
) -> Generator[SpeechRequest, SpeechAnswer | None, Heard]:
    """Transcribe a window. If the options set no temperature, a poor text is tried again with higher ones."""
    model, chosen = task.model, task.options.temperature
    silence = (yield from _silence(model, source)) if task.has_times or chosen is None else 0.0
    attempts: list[Heard] = []
    for temperature in TEMPERATURES if chosen is None else (chosen,):
        asked = task.request(source, language, temperature)
        answer = yield asked
        assert answer is not None
        text = model.coder.decode([token for token in answer.tokens if token < model.end])
        attempts.append(Heard(asked, answer, temperature, silence, compression(text)))
        is_silent = silence > MAX_SILENCE and attempts[-1].mean < LEAST_MEAN
        if attempts[-1].is_good or is_silent:
            break
    plain = [each for each in attempts if each.ratio <= MAX_RATIO] or attempts
    best = attempts[-1] if attempts[-1].is_good or is_silent else max(plain, key=lambda each: each.mean)
    total = sum(len(each.answer.tokens) for each in attempts)
    return best._replace(num_tokens=total, is_silent=chosen is None and is_silent)


def compression(text: str) -> float:
    """Return the compression ratio of a text: 1 or less for few words, more for repetitions."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def _align(
    task: _Task, heard: Heard, num_samples: int, language: str | None
) -> Generator[SpeechRequest, SpeechAnswer | None, list[tuple[float, float]]]:
    """Return when each text token of a window begins and ends."""
    model, asked = task.model, heard.asked
    written = [token for token in heard.answer.tokens if token != model.end]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, speculate="off")
    answer = yield SpeechRequest(asked.source, (*asked.prompt, *written), sampling, SpeechRules(), RequestKind.ALIGN)
    assert answer is not None
    frames = -(-num_samples // model.front_end.hop)
    ends = end_times(answer.rows, len(asked.prompt), len(written), frames // FRAMES_PER_TOKEN, model)
    spans = zip(written, [0.0, *ends[:-1]], ends, strict=True)
    return [(begin, end) for token, begin, end in spans if token < model.end]


def _source(model: SpeechModel, window: Array) -> EncoderInput:
    features = model.front_end.features(window)  # [frames, mels]
    return EncoderInput.of_features(np.ascontiguousarray(features).tobytes(), len(features) // FRAMES_PER_TOKEN)


def _one_token(source: EncoderInput, model: SpeechModel, allowed: Sequence[int]) -> SpeechRequest:
    """Return a request for the likeliest of these tokens after the start token, with its log probability."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1, allowed_token_ids=allowed, logprobs=0, speculate="off")
    return SpeechRequest(source, (model.special[START],), sampling, SpeechRules())


def _detect(model: SpeechModel, source: EncoderInput) -> Generator[SpeechRequest, SpeechAnswer | None, str]:
    """Return the code of the language."""
    if not model.is_multilingual:
        return "en"
    answer = yield _one_token(source, model, tuple(model.languages.values()))
    assert answer is not None
    return next(code for code, token in model.languages.items() if token == answer.tokens[0])


def _silence(model: SpeechModel, source: EncoderInput) -> Generator[SpeechRequest, SpeechAnswer | None, float]:
    """Return the probability that the window has no speech."""
    if model.no_speech is None:
        return 0.0
    answer = yield _one_token(source, model, (model.no_speech,))
    assert answer is not None
    return exp(answer.logprobs[0]) if answer.logprobs else 0.0


def cut_segments(
    tokens: Sequence[int], num_samples: int, model: SpeechModel
) -> tuple[list[tuple[float, float, tuple[int, ...]]], int]:
    """Cut a window's tokens at its timestamps: start, end and text tokens of each segment, and the samples used.

    Text after the last whole segment is left to the next window, unless no segment is whole.
    """
    first = model.first_timestamp
    written = [token for token in tokens if token != model.end]
    cuts = [at for at in range(1, len(written)) if written[at] >= first and written[at - 1] >= first]
    ends_alone = len(written) > 1 and written[-1] >= first > written[-2]
    seconds = num_samples / SAMPLE_RATE
    if not cuts and not ends_alone:
        times = [token for token in written if token >= first]
        end = (times[-1] - first) * SECONDS_PER_STEP if times and times[-1] != first else seconds
        return [(0.0, min(end, seconds), _text(written, model.end))], num_samples
    bounds = [0, *cuts, *([len(written)] if ends_alone else [])]
    pieces = []
    for begin, past in pairwise(bounds):
        part = written[begin:past]
        start, end = ((token - first) * SECONDS_PER_STEP if token >= first else 0.0 for token in (part[0], part[-1]))
        pieces.append((min(start, seconds), min(end, seconds), _text(part, model.end)))
    used = num_samples if ends_alone else round(pieces[-1][1] * SAMPLE_RATE)
    return pieces, min(used or num_samples, num_samples)


def _text(tokens: Sequence[int], end: int) -> tuple[int, ...]:
    return tuple(token for token in tokens if token < end)
