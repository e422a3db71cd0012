"""`quire run`: ask a model one question, or chat with it."""

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

from quire.cli.completion import stored_models
from quire.cli.conversation.answer_printer import DisplayOptions, print_timings
from quire.cli.conversation.chat import ChatSession, run_chat
from quire.cli.conversation.message_input import read_line
from quire.cli.conversation.slash_commands import completions, run_slash
from quire.cli.main import INTERRUPTED
from quire.cli.model.answer_options import LEVELS, THINK_VALUES, AnswerOptions, parse_format, parse_think
from quire.cli.model.loader import ModelLoader, full_name
from quire.cli.options import DEVICE_HELP, DEVICES, CommandSettings, HelpPage, argument, command, one_of, option
from quire.cli.terminal.echo import echo_disabled
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
FORMAT, LEVEL, DURATION = "json|SCHEMA", "[low|medium|high]", "DURATION"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `quire run` beside the settings of config.py."""

    model: str = argument(
        DEFAULT_MODEL,
        "A name, org/repo[:quant] on Hugging Face, or the path of a GGUF file or a folder.",
        autocompletion=stored_models,
    )
    prompt: tuple[str, ...] = argument((), "The message. Without it: standard input if that is a pipe, else a chat.")
    temperature: float | None = option(
        None, "Sampling temperature; 0 is greedy. Default: the model's recommendation.", panel=SAMPLING
    )
    top_p: float | None = option(
        None, "Sample from the most likely tokens up to this total probability.", panel=SAMPLING
    )
    top_k: int | None = option(None, "Sample from this many most likely tokens; 0: all.", panel=SAMPLING)
    min_p: float | None = option(None, "Drop tokens below this share of the best token's probability.", panel=SAMPLING)
    seed: int | None = option(None, "Random seed: the same seed gives the same text.", panel=SAMPLING)
    max_tokens: int | None = option(
        None, "Maximum tokens of the answer. Default: until the context is full.", panel=SAMPLING
    )
    stop: tuple[str, ...] = option((), "Stop before this text; can be repeated.", panel=SAMPLING)
    repetition_penalty: float | None = option(None, "Above 1: penalize repeated tokens.", panel=SAMPLING)
    presence_penalty: float | None = option(None, "Above 0: penalize tokens that were used.", panel=SAMPLING)
    frequency_penalty: float | None = option(
        None, "Above 0: penalize tokens by how often they were used.", panel=SAMPLING
    )
    system: str = option("", "The system message.")
    format: str = option(
        "", "Format of the answer: json, a JSON schema, or the path of a file with one.", metavar=FORMAT
    )
    think: str = option(
        "", "Think first, if the model's chat template has a switch for it: --think or --think=LEVEL.", metavar=LEVEL
    )
    no_think: bool = option(False, "Do not think first.", "--no-think")
    hide_thinking: bool = option(False, "Do not print the reasoning.", "--hidethinking", "--hide-thinking")
    keepalive: str = option(
        "", "How long a server keeps the model loaded after the last answer: 30s, 1h, 0; -1: forever.", metavar=DURATION
    )
    raw: bool = option(False, "Continue the text as is, without the chat template.", "--raw")
    no_wrap: bool = option(False, "Do not wrap lines at words on a terminal.", "--nowordwrap", "--no-wrap")
    verbose: bool = option(False, "Print token counts and times on standard error.", "--verbose")
    device: str = option("auto", DEVICE_HELP, autocompletion=one_of(*DEVICES))

    @property
    def keep_alive(self) -> float | None:
        """Seconds of --keepalive. None: the server's setting."""
        return seconds_of_flag(self.keepalive, "keepalive") if self.keepalive else None

    @property
    def answer_options(self) -> AnswerOptions:
        """Format and thinking of the answers."""
        if self.no_think and self.think:
            raise InvalidRequest("--think and --no-think were both given. Use one of them.", field="think")
        return AnswerOptions(parse_format(self.format), False if self.no_think else parse_think(self.think))

    def check(self) -> None:
        """Raise on invalid flags before anything is pulled or loaded."""
        self.sampling({})
        _ = self.keep_alive

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Return the sampling parameters: flags, then the defaults."""
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
        flags = {name: getattr(self, name) for name in (*names, *penalties) if getattr(self, name) is not None}
        return SamplingParams(**({**defaults} | flags | ({"stop": self.stop} if self.stop else {})))


class RunCommand(TyperCommand):
    """Parses `--think` with or without a level: the next word is its value only if it is a valid one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--think` its value, which click requires."""
        end = args.index("--") if "--" in args else len(args)
        words: list[str] = []
        for index, word in enumerate(args[:end]):
            if word == "--think":
                has_value = index + 1 < end and args[index + 1].lower() in (*LEVELS, *THINK_VALUES)
                word = "--think" if has_value else "--think=true"
            words.append(word)
        return super().parse_args(ctx, [*words, *args[end:]])


@command(
    RunOptions,
    *("cache", "scheduler", "sampling", "grammar", "speculation", "observe", "weights", "device", "store"),
    names=("host", "port", "api_key"),
    help_page=HelpPage(EXAMPLES, RunCommand),
)
def run(options: RunOptions, settings: CommandSettings) -> None:
    """Ask a model, or chat with it. Pulls the model if it is not on this disk."""
    name, answer_options = full_name(options.model), options.answer_options
    text = _prompt(options.prompt)
    options.check()
    with echo_disabled() if text is None else nullcontext():  # keys typed while the model loads go to the prompt
        chat = _start_chat(options, ModelLoader(options, settings), name, answer_options)
        try:
            if text is None:
                _run_chat(chat, settings)
            elif not chat.answer(text):
                raise typer.Exit(INTERRUPTED)
        finally:
            chat.loaded.model.close()


def _start_chat(options: RunOptions, loader: ModelLoader, name: str, answer_options: AnswerOptions) -> ChatSession:
    """Pull the model if it is not on this disk, and load it."""
    file = loader.fetch(name)
    start = time.monotonic()
    loaded = loader.load(file, answer_options)
    if options.verbose:
        print_timings(None, time.monotonic() - start)
    display = DisplayOptions(wraps=not options.no_wrap, hides_reasoning=options.hide_thinking)
    return ChatSession(loaded, loader, answer_options, options.system, options.verbose, display)


def _run_chat(chat: ChatSession, settings: CommandSettings) -> None:
    """Run the chat. If standard output is not a terminal, lines are read without an editor."""
    if not sys.stdout.isatty():
        run_chat(chat, run_slash, read_line)
        return
    prompting = import_module("quire.cli.conversation.prompter")  # imported here: it takes 0.15 s
    prompter = prompting.Prompter(settings.home / "history", partial(completions, chat))
    with closing(prompter):
        run_chat(chat, run_slash, prompter.read)


def _prompt(words: tuple[str, ...]) -> str | None:
    """Return the prompt: the arguments, then piped input. None: start a chat on the terminal."""
    message = " ".join(words)
    if sys.stdin is None or (words and not _is_piped()):
        return message
    if sys.stdin.isatty():
        return None
    piped = sys.stdin.read().strip("\n")
    text = "\n\n".join(part for part in (message, piped) if part)
    if not text:
        raise typer.BadParameter("no prompt: give a PROMPT, or write it to standard input.")
    return text


def _is_piped() -> bool:
    """Is standard input a pipe or a file? Terminals, null devices and sockets hold no prompt."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
