"""`quire transcribe`: write down what is said in sound files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import typer

from quire.cli.completion import stored_models
from quire.cli.options import DEVICE_HELP, DEVICES, CommandSettings, argument, command, one_of, option
from quire.cli.terminal.progress import show_progress
from quire.speech.subtitles import to_srt, to_vtt
from quire.types.errors import InvalidRequest
from quire.types.speech import Transcript

FORMATS = ("text", "srt", "vtt", "json")


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """Options of `quire transcribe`."""

    files: tuple[str, ...] = argument(..., "Sound files: WAV, FLAC, MP3 or OGG.", metavar="FILE...")
    model: str = option("", "A Whisper model: a name or a folder.", "--model", "-m", autocompletion=stored_models)
    language: str = option("", "Code of the language, such as en. Default: it is detected.")
    translate: bool = option(False, "Translate into English.", "--translate")
    prompt: str = option("", "Text with names and spellings to expect.")
    temperature: float | None = option(
        None, "Randomness; 0: the likeliest text. Default: 0, and higher ones if the text is repetitive or unlikely."
    )
    words: bool = option(False, "With the times of words; needs --format json.", "--words")
    format: str = option("text", f"What to print: {', '.join(FORMATS)}.", autocompletion=one_of(*FORMATS))
    device: str = option("auto", DEVICE_HELP, autocompletion=one_of(*DEVICES))


@command(TranscribeOptions, names=("home", "kv_dtype", "memory_share"))
def transcribe_files(options: TranscribeOptions, settings: CommandSettings) -> None:
    """Transcribe sound files, and print their text or subtitles."""
    if options.format not in FORMATS:
        raise InvalidRequest(f"format is {options.format!r}; it must be one of {', '.join(FORMATS)}.", field="format")
    if options.words and options.format != "json":
        raise InvalidRequest("--words needs --format json: other formats have only segment times.", field="words")
    if not options.model:
        raise InvalidRequest("model is missing: name a Whisper model with --model.", field="model")
    missing = [name for name in options.files if not Path(name).is_file()]
    if missing:
        raise InvalidRequest(f"There is no file {missing[0]!r}.", field="files")
    with show_progress() as progress:
        path = settings.store.resolve(options.model, progress)
    llm = import_module("quire.engine.llm")  # at first use: the help page does not need it
    flags = dict(settings.flags)
    flags.pop("home", None)
    with llm.LLM(path, device=options.device, **flags) as model:
        found = model.transcribe(
            list(options.files),
            language=options.language or None,
            translate=options.translate,
            prompt=options.prompt,
            temperature=options.temperature,
            words=options.words,
        )
    for name, transcript in zip(options.files, found, strict=True):
        if len(found) > 1 and options.format == "text":
            typer.echo(f"{name}:")
        typer.echo(_written(transcript, options.format), nl=options.format in ("text", "json"))


def _written(found: Transcript, form: str) -> str:
    if form == "json":
        return json.dumps(asdict(found), ensure_ascii=False)
    if form == "text":
        return found.text
    return to_srt(found.segments) if form == "srt" else to_vtt(found.segments)
