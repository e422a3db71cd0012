"""`quire run`: a model answers, once or in a chat."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand

from quire.cli.answer import Display, print_figures
from quire.cli.chat import Chat, talk
from quire.cli.completion import stored_models
from quire.cli.form import LEVELS, SWITCHED, Form, constraint_of, think_of
from quire.cli.keys import keys_not_echoed
from quire.cli.lines import read_line
from quire.cli.opened import Opener, full_name
from quire.cli.options import (
    DEVICE_HELP,
    DEVICES,
    INTERRUPTED,
    Given,
    Shown,
    argument,
    command,
    one_of,
    option,
)
from quire.cli.slash import completions, run_slash
from quire.store.store import DEFAULT_MODEL
from quire.types.duration import seconds_of_flag
from quire.types.errors import InvalidRequest
from quire.types.request import SamplingParams

SAMPLING = "Sampling"
EXAMPLES = (
    f'quire run {DEFAULT_MODEL} "Why is the sky blue?"',
    f"quire run {DEFAULT_MODEL} --temperature 0 --max-tokens 50 < question.txt",
    f'quire run {DEFAULT_MODEL} --format json "Name three colors."',
    f"quire run {DEFAULT_MODEL}",
)
FORMAT, LEVEL, TIME = "json|SCHEMA", "[low|medium|high]", "DURATION"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of its own; those of the engine come from config.py."""

    model: str = argument(
        DEFAULT_MODEL,
        "A name, org/repo[:quant] of the model hub, or the path of a GGUF file or a folder.",
        autocompletion=stored_models,
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
    format: str = option("", "Form of the answer: json, a JSON schema, or the path of a file with one.", metavar=FORMAT)
    think: str = option(
        "", "Think first, as far as the model's template has a switch: --think, or --think=LEVEL.", metavar=LEVEL
    )
    no_think: bool = option(False, "Do not think first.", "--no-think")
    hide_thinking: bool = option(False, "Leave thoughts out of what is printed.", "--hidethinking", "--hide-thinking")
    keepalive: str = option(
        "", "How long a server keeps the model after the last answer, such as 30s, 1h or 0; -1: for ever.", metavar=TIME
    )
    raw: bool = option(False, "Continue the text as it is, without the chat template.", "--raw")
    no_wrap: bool = option(False, "Do not break lines at words on a terminal.", "--nowordwrap", "--no-wrap")
    verbose: bool = option(False, "Print tokens and times on standard error.", "--verbose")
    device: str = option("auto", DEVICE_HELP, autocompletion=one_of(*DEVICES))

    @property
    def keep_alive(self) -> float | None:
        """Seconds. None: as the server is set."""
        return seconds_of_flag(self.keepalive, "keepalive") if self.keepalive else None

    @property
    def form(self) -> Form:
        """Of the answers."""
        if self.no_think and self.think:
            raise InvalidRequest("--think and --no-think exclude each other: give one of them.", field="think")
        return Form(constraint_of(self.format), False if self.no_think else think_of(self.think))

    def check(self) -> None:
        """Raise what is wrong with the flags, before anything is fetched or loaded."""
        self.sampling({})
        _ = self.keep_alive

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Flags over the defaults."""
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        given = {name: getattr(self, name) for name in (*names, *penalties) if getattr(self, name) is not None}
        return SamplingParams(**({**defaults} | given | ({"stop": self.stop} if self.stop else {})))


class RunCommand(TyperCommand):
    """Takes `--think` with or without a level: the next word is a level only if it is spelled like one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write `--think` with its value, as the parser wants it."""
        end = args.index("--") if "--" in args else len(args)
        spelled: list[str] = []
        for place, word in enumerate(args[:end]):
            if word == "--think":
                has_value = place + 1 < end and args[place + 1].lower() in (*LEVELS, *SWITCHED)
                word = "--think" if has_value else "--think=true"
            spelled.append(word)
        return super().parse_args(ctx, [*spelled, *args[end:]])


@command(
    RunOptions,
    *("cache", "scheduler", "sampling", "grammar", "observe", "weights", "device", "store"),
    names=("host", "port", "api_key"),
    shown=Shown(EXAMPLES, RunCommand),
)
def run(options: RunOptions, given: Given) -> None:
    """Ask a model, or chat with it. It is fetched if it is not here yet."""
    name, form = full_name(options.model), options.form
    text = _prompt(options.prompt)
    options.check()
    with keys_not_echoed() if text is None else nullcontext():  # what is typed while the model loads is for the prompt
        chat = _opened_chat(options, Opener(options, given), name, form)
        try:
            if text is None:
                _talk(chat, given)
            elif not chat.answer(text):
                raise typer.Exit(INTERRUPTED)
        finally:
            chat.opened.engine.close()


def _opened_chat(options: RunOptions, opener: Opener, name: str, form: Form) -> Chat:
    """Fetch the model if it is not here, and load it."""
    located = opener.locate(name)
    start = time.monotonic()
    opened = opener.open(located, form)
    if options.verbose:
        print_figures(None, time.monotonic() - start)
    display = Display(wraps=not options.no_wrap, hides_thoughts=options.hide_thinking)
    return Chat(opened, opener, form, options.system, options.verbose, display)


def _talk(chat: Chat, given: Given) -> None:
    """Chat. Without a terminal to print on, lines are read as they are."""
    if not sys.stdout.isatty():
        talk(chat, run_slash, read_line)
        return
    prompting = import_module("quire.cli.prompt")  # by name, here: it takes longer to import than an answer to begin
    prompter = prompting.Prompter(given.home / "history", partial(completions, chat))
    with closing(prompter):
        talk(chat, run_slash, prompter.read)


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
