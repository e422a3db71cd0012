"""`/v1/audio/transcriptions` and `/v1/audio/translations`, as OpenAI has them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from quire.serve.dialects.audio import writer
from quire.serve.dialects.audio.form import Form, read_form
from quire.serve.dialects.body import Refusal, Schemas, read_body
from quire.serve.dialects.contract import DecodedSpeech, Dialect, RequestLimits, SpeechEndpoint
from quire.serve.dialects.openai.replies import error_body
from quire.types.errors import InvalidRequest
from quire.types.speech import SpeechOptions

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
LISTS = ("timestamp_granularities", "include")


class TranslationBody(msgspec.Struct, omit_defaults=True):
    """The fields of a translation; `file` is the recording."""

    file: str
    model: str = ""
    prompt: str = ""
    response_format: Format = "json"
    temperature: float | None = None  # None: 0, and higher ones if the text is repetitive or unlikely


class TranscriptionBody(TranslationBody):
    """The fields of a transcription."""

    language: str | None = None
    stream: bool = False
    timestamp_granularities: list[Literal["segment", "word"]] = msgspec.field(default_factory=list)


REFUSED = {
    "include": Refusal("log probabilities of a transcription are in verbose_json: avg_logprob.", ([],)),
    "chunking_strategy": Refusal("windows end where segments do.", ("auto", "", None)),
    "known_speaker_names": Refusal("speakers are not told apart.", ([],)),
    "known_speaker_references": Refusal("speakers are not told apart.", ([],)),
}


def decode_transcription(content_type: str | None, body: bytes, limits: RequestLimits) -> DecodedSpeech:
    """Decode a recording to transcribe."""
    given, audio = _read(read_form(content_type, body), TranscriptionBody)
    if given.timestamp_granularities and given.response_format != "verbose_json":
        raise InvalidRequest("timestamp_granularities needs response_format: verbose_json.",
                             field="timestamp_granularities")  # fmt: skip
    if given.stream and given.response_format not in ("json", "text"):
        raise InvalidRequest(f"stream does not go with response_format: {given.response_format}. Use json.",
                             field="stream")  # fmt: skip
    language = (given.language or "").strip().lower() or None
    asked = given.timestamp_granularities
    decoded = _decoded(given, audio, SpeechOptions(language, has_words="word" in asked), streams=given.stream)
    if "word" not in asked:
        return decoded
    return decoded._replace(whole=partial(writer.verbose, has_segments="segment" in asked, has_words=True))


def decode_translation(content_type: str | None, body: bytes, limits: RequestLimits) -> DecodedSpeech:
    """Decode a recording to translate into English."""
    given, audio = _read(read_form(content_type, body), TranslationBody)
    return _decoded(given, audio, SpeechOptions(translate=True), streams=False)


def _decoded(given: TranslationBody, audio: bytes, options: SpeechOptions, *, streams: bool) -> DecodedSpeech:
    if given.temperature is not None and not 0.0 <= given.temperature <= 1.0:
        raise InvalidRequest(f"temperature is {given.temperature}; it must be from 0 to 1.", field="temperature")
    has_times = streams or given.response_format not in ("json", "text")
    options = replace(options, prompt=given.prompt, temperature=given.temperature, has_times=has_times)
    form = writer.FORMS[given.response_format]
    return DecodedSpeech(given.model, audio, options, streams, form.content_type, form.whole, writer.delta, writer.done)


def _read(form: Form, shape: type[Any]) -> tuple[Any, bytes]:
    """The fields as the shape has them, and the file."""
    if "file" not in form.files:
        raise InvalidRequest("file is missing: send the recording as a file, with a file name.", field="file")
    if others := sorted(set(form.files) - {"file"}):
        raise InvalidRequest(f"{others[0]} is a file; only `file` may be one.", field=others[0])
    values: dict[str, Any] = {"file": ""}
    for name, texts in form.fields.items():
        plain = name.removesuffix("[]")
        if plain in LISTS:
            values[plain] = [*values.get(plain, []), *texts]
        elif len(texts) > 1:
            raise InvalidRequest(f"{plain} was given {len(texts)} times.", field=plain)
        else:
            values[plain] = _value(plain, texts[0])
    return read_body(writer.encode(values), shape, REFUSED), form.files["file"]


def _value(name: str, text: str) -> Any:
    """A field as JSON would have it: forms have texts alone."""
    if name == "stream":
        if text.lower() not in ("true", "false"):
            raise InvalidRequest(f"stream is {text[:40]!r}; it must be true or false.", field=name)
        return text.lower() == "true"
    if name == "temperature":
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):  # JSON would have null for it
            raise InvalidRequest(f"temperature is {text[:40]!r}; it must be a number.", field=name)
        return number
    return text


DIALECT = Dialect(
    name="audio",
    endpoints=(
        SpeechEndpoint(TRANSCRIPTIONS, decode_transcription),
        SpeechEndpoint(TRANSLATIONS, decode_translation),
    ),
    error=error_body,
    headers={},
    schemas=Schemas({TRANSCRIPTIONS: (TranscriptionBody, REFUSED), TRANSLATIONS: (TranslationBody, REFUSED)}),
)
