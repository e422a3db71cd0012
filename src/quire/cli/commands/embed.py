"""`quire embed`: the vectors of texts."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib import import_module

import typer

from quire.cli.completion import stored_models
from quire.cli.options import DEVICE_HELP, DEVICES, CommandSettings, HelpPage, argument, command, one_of, option
from quire.cli.terminal.progress import show_progress
from quire.types.errors import InvalidRequest

EXAMPLES = (
    'quire embed ./all-MiniLM-L6-v2 "A sentence." "Another one."',
    "quire embed ./bge-base-en-v1.5 --truncate < sentences.txt > vectors.jsonl",
)


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Options of `quire embed` beside the settings of config.py."""

    model: str = argument(..., "A name, or the path of a GGUF file or a folder.", autocompletion=stored_models)
    texts: tuple[str, ...] = argument((), "The texts. Without them: the lines of standard input.")
    dimensions: int | None = option(None, "Keep only the first numbers of each vector.")
    prompt_name: str | None = option(None, "The model's prompt to put before each text, such as query or document.")
    truncate: bool = option(False, "Cut texts that are longer than the model reads.", "--truncate")
    device: str = option("auto", DEVICE_HELP, autocompletion=one_of(*DEVICES))


@command(EmbedOptions, "embedding", "cache", "scheduler", "weights", "device", "observe", names=("home",),
         help_page=HelpPage(EXAMPLES))  # fmt: skip
def embed_lines(options: EmbedOptions, settings: CommandSettings) -> None:
    """Print the vector of each text as a JSON list, one per line."""
    texts = options.texts or tuple(line.rstrip("\n") for line in sys.stdin)
    if not texts:
        raise InvalidRequest("There is no text: give some after the model, or lines on standard input.", field="texts")
    with show_progress() as progress:
        path = settings.store.resolve(options.model, progress)
    llm_module = import_module("quire.engine.llm")  # numpy and the engine, at first use
    with llm_module.LLM(path, device=options.device, **settings.flags) as llm:
        chosen = {"dimensions": options.dimensions, "prompt_name": options.prompt_name, "truncate": options.truncate}
        for each in llm.embed(list(texts), **chosen):
            typer.echo(json.dumps(each.vector.tolist()))
