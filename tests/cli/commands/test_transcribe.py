"""`quire transcribe` prints text, subtitles or JSON, and says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.app import make_typer_app
from tests.speech.toy import make_speech_folder, spoken

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_speech_folder(tmp_path_factory.mktemp("whisper"))
    (folder / "speech.wav").write_bytes(spoken())
    return folder


def transcribe(folder: Path, *arguments: str) -> str:
    home = ("--home", str(folder / "home"), "--device", "cpu", "--language", "en")
    done = CliRunner().invoke(make_typer_app(["transcribe"]), ["transcribe", *arguments, *home])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_text_subtitles_and_json_are_of_one_transcript(folder: Path):
    file, model = str(folder / "speech.wav"), ("--model", str(folder))
    facts = json.loads(transcribe(folder, file, *model, "--format", "json"))
    assert facts["language"] == "en" and facts["segments"]
    assert transcribe(folder, file, *model).rstrip("\n") == facts["text"]
    subtitles = transcribe(folder, file, *model, "--format", "vtt")
    assert subtitles.startswith("WEBVTT") and subtitles.count("-->") == len(facts["segments"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("{file}",), "--model"), (("/nowhere.wav", "--model", "x"), "/nowhere.wav"),
     (("{file}", "--model", "x", "--format", "pdf"), "text, srt, vtt, json")],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_named(folder: Path, arguments: tuple[str, ...], text: str):
    given = [each.format(file=folder / "speech.wav") for each in arguments]
    done = CliRunner().invoke(make_typer_app(["transcribe"]), ["transcribe", *given])
    assert done.exit_code != 0 and text in f"{done.output}{done.exception}"
