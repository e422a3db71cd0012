"""Print an answer as it streams. Ctrl-C stops it; --verbose prints its token counts and times."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType

from quire.cli.model.chat_model import AnswerPart
from quire.cli.terminal.echo import echo_disabled
from quire.cli.terminal.word_wrap import WordWrap, terminal_columns
from quire.types.answer import Usage

REASONING_BEGINS, REASONING_ENDS = "Thinking...\n", "...done thinking.\n\n"


@dataclass(slots=True)
class StopFlag:
    """Set by the SIGINT handler, read between two parts of an answer."""

    is_set: bool = False


@dataclass(frozen=True, slots=True)
class PrintedAnswer:
    """An answer as far as it was printed."""

    text: str
    usage: Usage | None
    is_stopped: bool


@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """How answers are printed."""

    wraps: bool = True  # at words; on a terminal only
    hides_reasoning: bool = False


class AnswerPrinter:
    """Writes one answer to standard output: reasoning between two marker lines, then the text."""

    def __init__(self, display: DisplayOptions) -> None:
        self._hides_reasoning = display.hides_reasoning
        self._wrap = WordWrap(terminal_columns) if display.wraps and sys.stdout.isatty() else None
        self._last = "\n"  # the last character written
        self._is_reasoning = False

    def print_part(self, part: AnswerPart) -> None:
        """Write the next part."""
        if part.reasoning and not self._hides_reasoning:
            self._write(part.reasoning if self._is_reasoning else REASONING_BEGINS + part.reasoning)
            self._is_reasoning = True
        if part.text:
            self._end_reasoning()
            self._write(part.text)

    def end(self) -> None:
        """Write what is missing to end the last line."""
        self._end_reasoning()
        if self._last != "\n":
            self._write("\n")

    def _end_reasoning(self) -> None:
        if self._is_reasoning:
            self._write(REASONING_ENDS if self._last == "\n" else "\n" + REASONING_ENDS)
            self._is_reasoning = False

    def _write(self, text: str) -> None:
        self._last = text[-1]
        sys.stdout.write(self._wrap.push(text) if self._wrap else text)
        sys.stdout.flush()


def print_answer(stream: Callable[[], Generator[AnswerPart, None, None]], display: DisplayOptions) -> PrintedAnswer:
    """Print an answer while it streams. The output ends with a newline; keys typed meanwhile are not echoed."""
    texts: list[str] = []
    usage, printer = None, AnswerPrinter(display)
    try:
        with echo_disabled(), interruptible() as stop, closing(stream()) as parts:
            for part in parts:
                texts.append(part.text)
                printer.print_part(part)
                usage = part.usage or usage
                if stop.is_set:
                    break
    finally:
        printer.end()
    return PrintedAnswer("".join(texts), usage, stop.is_set)


@contextmanager
def interruptible() -> Iterator[StopFlag]:
    """Turn the first Ctrl-C into a flag, so that no engine step is interrupted. The second raises KeyboardInterrupt."""
    stop = StopFlag()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set:
            raise KeyboardInterrupt
        stop.is_set = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def print_timings(usage: Usage | None, load_seconds: float | None = None) -> None:
    """Print the token counts and times of --verbose on standard error."""
    lines = {} if load_seconds is None else {"load time": f"{load_seconds:.2f} s"}
    if usage is not None:
        lines |= {
            "prompt tokens": f"{usage.prompt}",
            "cached tokens": f"{usage.cached}",
            "time to first token": f"{usage.first_token_seconds:.3f} s",
            "output tokens": f"{usage.output} in {usage.seconds:.2f} s",
            "drafted tokens": _draft_line(usage),
            "tokens per second": f"{usage.tokens_per_second:.1f}" if usage.tokens_per_second else "-",
        }
    for name, value in lines.items():
        print(f"{name + ':':<21}{value}", file=sys.stderr, flush=True)


def _draft_line(usage: Usage) -> str:
    """How many tokens were drafted and accepted; if there are several drafters, of each."""
    if not usage.drafts:
        return "0"
    each = ", ".join(f"{name} {accepted} of {drafted}" for name, drafted, accepted in usage.drafts)
    return f"{usage.drafted}, of which {usage.accepted} were accepted ({each})"
