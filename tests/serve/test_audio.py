"""OpenAI's audio endpoints, called with OpenAI's client; bad recordings are refused with what to do."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
import soundfile

from quire.serve.dialects.audio.form import read_form
from quire.serve.dialects.audio.writer import verbose
from quire.serve.http.app import all_dialects
from quire.types.speech import Transcript
from tests.serve.running import Running, running
from tests.speech.toy import make_speech_folder, spoken

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = make_speech_folder(tmp_path_factory.mktemp("whisper"))
    with running(folder, all_dialects(), max_context=96, max_body_mb=8.0, lowered_gb=0) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def recording(name: str = "speech.wav") -> tuple[str, bytes]:
    return name, spoken()


def in_format(kind: str) -> bytes:
    samples, rate = soundfile.read(io.BytesIO(spoken()), dtype="float32")
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind)
    return out.getvalue()


def test_json_text_and_verbose_json_have_the_same_segments(client: openai.OpenAI):
    create = client.audio.transcriptions.create
    verbose = create(
        model="toy", file=recording(), response_format="verbose_json", language="en",
        timestamp_granularities=["segment"], temperature=0,
    )  # fmt: skip
    assert verbose.language == "en" and verbose.duration == pytest.approx(2.78, abs=0.5)
    assert verbose.segments and verbose.text == "".join(each.text for each in verbose.segments).strip()
    words = create(
        model="toy", file=recording(), response_format="verbose_json", language="en", temperature=0,
        timestamp_granularities=["word"],
    )  # fmt: skip
    assert words.text == verbose.text and not words.segments and words.words
    assert all(0 <= each.start <= each.end <= verbose.duration for each in words.words)
    plain = create(model="toy", file=recording(), response_format="text", language="en", temperature=0)
    assert plain.strip() == verbose.text
    srt = create(model="toy", file=recording(), response_format="srt", language="en", temperature=0)
    vtt = create(model="toy", file=recording(), response_format="vtt", language="en", temperature=0)
    assert srt.startswith("1\n00:00:00,") and srt.count(" --> ") == len(verbose.segments)
    assert vtt.startswith("WEBVTT\n\n00:00:00.") and vtt.count(" --> ") == len(verbose.segments)


def test_a_stream_ends_with_the_whole_text(client: openai.OpenAI):
    events = list(client.audio.transcriptions.create(model="toy", file=recording(), language="en", stream=True))
    assert events[-1].type == "transcript.text.done"
    deltas = "".join(each.delta for each in events[:-1])
    assert deltas.strip() == events[-1].text and len(events) > 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the client's own method
def test_translation_prompt_and_temperature(client: openai.OpenAI):
    found = client.audio.translations.create(model="toy", file=recording(), prompt="Quire", temperature=0.4)
    assert found.text


def test_values_that_change_nothing_are_accepted(client: openai.OpenAI):
    found = client.audio.transcriptions.create(
        model="toy", file=recording(), language="en", temperature=0, chunking_strategy="auto"
    )
    assert found.text


def test_words_and_segments_are_lists_even_if_nothing_was_said():
    nothing = Transcript("", "en", 1.0, "transcribe", ())
    assert json.loads(verbose(nothing, has_words=True)).items() >= {"words": [], "segments": []}.items()
    assert "words" not in json.loads(verbose(nothing))


def test_names_of_a_form_need_no_quotes():
    heads = ("name=file; filename=a.wav", "name=model", 'filename="name=x"; name="stream"')
    parts = zip(heads, (spoken(), b"toy", b"RIFF"), strict=True)
    body = b"".join(b"--x\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + content + b"\r\n"
                    for head, content in parts)  # fmt: skip
    found = read_form("multipart/form-data; boundary=x", body + b"--x--\r\n")
    assert found.files == {"file": spoken(), "stream": b"RIFF"} and found.fields == {"model": ["toy"]}


def test_it_is_listed_as_a_speech_model(server: Running):
    assert server.http.post("/api/show", json={"model": "toy"}).json()["capabilities"] == ["transcription"]


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3"])
def test_sound_files_of_every_format_are_read(client: openai.OpenAI, kind: str):
    found = client.audio.transcriptions.create(
        model="toy",
        file=(f"a.{kind.lower()}", in_format(kind)),
        response_format="verbose_json",
        language="en",
        temperature=0,
    )
    assert found.duration == pytest.approx(2.78, abs=0.6)


def long_flac() -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.zeros(3 * 3600 * 8000, np.int16), 8000, format="FLAC")
    return out.getvalue()


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "empty": ({"file": ("a.wav", b"")}, "0 bytes", "file"),
    "image": ({"file": ("a.png", b"\x89PNG\r\n\x1a\n" + b"0" * 64)}, "is a PNG image, not audio", "file"),
    "corrupt": ({"file": ("a.wav", b"RIFF" + b"\x00" * 100)}, "cannot be decoded", "file"),
    "language": ({"language": "xx"}, "this model knows de, en, fr", "language"),
    "words": ({"timestamp_granularities": ["word"]}, "needs response_format: verbose_json", "granularities"),
    "format": ({"response_format": "yaml"}, "must be one of", "response_format"),
    "temperature": ({"temperature": 3}, "must be from 0 to 1", "temperature"),
    "no number": ({"temperature": "nan"}, "must be a number", "temperature"),
    "speakers": ({"known_speaker_names": ["a"]}, "speakers are not told apart", "known_speaker_names"),
    "stream": ({"response_format": "srt", "stream": True}, "stream does not go with", "stream"),
    "unknown": ({"extra_body": {"speed": 2}}, "speed", "speed"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused_by_field(client: openai.OpenAI, name: str):
    change, text, field = BAD[name]
    with pytest.raises(openai.BadRequestError) as error:
        client.audio.transcriptions.create(**{"model": "toy", "file": recording(), **change})
    assert text in str(error.value) and field in str(error.value.param)


def test_three_hours_are_refused_by_the_header(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="10800 s long, 7200 s is the limit"):
        client.audio.transcriptions.create(model="toy", file=("a.flac", long_flac()))


def test_a_body_that_is_no_form_is_refused(server: Running):
    answer = server.http.post("/v1/audio/transcriptions", json={"model": "toy"})
    assert answer.status_code == 400 and "multipart/form-data" in answer.text
    cut = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF'
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert "not whole" in server.http.post("/v1/audio/transcriptions", content=cut, headers=headers).text


@pytest.mark.parametrize(
    "path, body, words",
    [
        ("/v1/completions", {"prompt": "a"}, "send a sound file to /v1/audio/transcriptions"),
        ("/v1/completions", {"prompt": [1, 2]}, "send a sound file to /v1/audio/transcriptions"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "send a sound file to"),
        ("/api/generate", {"prompt": "a"}, "send a sound file to"),
        ("/v1/embeddings", {"input": "a"}, "This model cannot embed: it can transcribe."),
        ("/v1/rerank", {"query": "a", "documents": ["a"]}, "This model cannot score: it can transcribe."),
    ],
)
def test_texts_are_refused_with_what_the_model_can_do(server: Running, path: str, body: dict[str, Any], words: str):
    answer = server.http.post(path, json={"model": "toy", **body})
    assert answer.status_code == 400 and words in answer.text and "--pooling" not in answer.text
