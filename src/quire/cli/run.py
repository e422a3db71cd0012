"""`quire run`: a model answers, once or in a chat."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from quire.cli.answer import print_figures
from quire.cli.chat import Chat, talk
from quire.cli.engine import Engine, open_engine, served_model
from quire.cli.lines import history
from quire.cli.options import INTERRUPTED, Given, argument, command, option
from quire.cli.progress import shown
from quire.cli.sampling import CAREFUL
from quire.cli.slash import run_slash
from quire.store.errors import BadName
from quire.store.names import DEFAULT_TAG, parse_name
from quire.store.store import DEFAULT_MODEL
from quire.types.request import SamplingParams

SAMPLING = "Sampling"
SAME_ANYWHERE = {"home", "log_level", "log_format"}  # flags that say nothing of an engine


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of its own; those of the engine come from config.py."""

    model: str = argument(
        DEFAULT_MODEL, "A name, org/repo[:quant] of the model hub, or the path of a GGUF file or a folder."
    )
    prompt: tuple[str, ...] = argument((), "What to say. Without it: standard input if that is a pipe, else a chat.")
    temperature: float | None = option(
        None, "0 is greedy. Default: what the model's authors recommend.", panel=SAMPLING
    )
    top_p: float | None = option(None, "Choose among the likeliest tokens with this sum.", panel=SAMPLING)
    top_k: int | None = option(None, "Choose among this many tokens; 0: all.", panel=SAMPLING)
    min_p: float | None = option(None, "Leave out what is this much less likely than the best.", panel=SAMPLING)
    seed: int | None = option(None, "The same seed gives the same text.", panel=SAMPLING)
    max_tokens: int | None = option(None, "Longest answer. Default: until the context is full.", panel=SAMPLING)
    stop: tuple[str, ...] = option((), "End the answer before this text; may be given again.", panel=SAMPLING)
    repetition_penalty: float | None = option(None, "Above 1: repeat less.", panel=SAMPLING)
    presence_penalty: float | None = option(None, "Above 0: use new words.", panel=SAMPLING)
    frequency_penalty: float | None = option(None, "Above 0: use a word less the more it was used.", panel=SAMPLING)
    system: str = option("", "The system message.")
    raw: bool = option(False, "Continue the text as it is, without the chat template.", "--raw")
    verbose: bool = option(False, "Print tokens and times on standard error.", "--verbose")
    device: str = option("auto", "Where to compute: cpu, cuda, or auto: a GPU if there is one and torch, else the CPU.")

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Flags over the defaults."""
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        given = {name: getattr(self, name) for name in (*names, *penalties) if getattr(self, name) is not None}
        return SamplingParams(**({**defaults} | given | ({"stop": self.stop} if self.stop else {})))


@command(RunOptions, "cache", "scheduler", "sampling", "grammar", "observe", "weights", "device", "store")
def run(options: RunOptions, given: Given) -> None:
    """Ask a model, or chat with it. It is fetched if it is not here yet."""
    name = _model_name(options)
    text = _prompt(options.prompt)
    options.sampling({})  # a wrong flag is an error before anything is fetched or loaded
    with shown() as progress:
        path = given.store.resolve(name, progress)
    start = time.monotonic()
    with closing(_engine(name, path, options, given)) as engine:
        load_seconds = time.monotonic() - start
        raw = options.raw or engine.template.is_default
        if raw and not options.raw:
            print("This model has no chat template: it continues what you write.", file=sys.stderr)
        ours = {} if options.raw else CAREFUL
        sampling = options.sampling({**ours, **engine.sampling_defaults})
        chat = Chat(engine, name, sampling, options.system, raw, options.verbose)
        if options.verbose:
            print_figures(None, load_seconds)
        if text is None:
            with history(given.home / "history"):
                talk(chat, run_slash)
        elif not chat.answer(text):
            raise typer.Exit(INTERRUPTED)


def _engine(name: str, path: Path, options: RunOptions, given: Given) -> Engine:
    """A server's that runs already, unless the user wants it otherwise than that has it; else one for us alone."""
    is_plain = options.device == "auto" and not given.flags.keys() - SAME_ANYWHERE
    if is_plain and parse_name(name).kind != "path":
        served = served_model(name.removesuffix(f":{DEFAULT_TAG}"), given.config.serve)
        if served is not None:
            return served
    return open_engine(path, options.device, given.of_engine)


def _model_name(options: RunOptions) -> str:
    try:
        name = parse_name(options.model)
    except BadName as error:
        if " " not in options.model:
            raise
        raise BadName(options.model, f"the model comes first, quire run {DEFAULT_MODEL} {options.model!r}") from error
    return str(name)


def _prompt(words: tuple[str, ...]) -> str | None:
    """What to ask: the words, then what comes through a pipe. None: ask the user, who is at a terminal."""
    said = " ".join(words)
    if sys.stdin is None or (words and not _is_piped()):
        return said
    if sys.stdin.isatty():
        return None
    piped = sys.stdin.read().strip("\n")
    text = "\n\n".join(part for part in (said, piped) if part)
    if not text:
        raise typer.BadParameter("there is nothing to answer: give a PROMPT, or write to standard input.")
    return text


def _is_piped() -> bool:
    """Is standard input a pipe or a file? A terminal, a null device or a service's socket holds no prompt."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
