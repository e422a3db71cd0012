"""One answer on the terminal: streamed as it comes, stopped by Ctrl-C, with its figures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType

from quire.cli.engine import Piece
from quire.cli.keys import keys_not_echoed
from quire.cli.wrapping import WordWrap, terminal_columns
from quire.types.answer import Usage

THOUGHT_BEGINS, THOUGHT_ENDS = "Thinking...\n", "...done thinking.\n\n"


@dataclass(slots=True)
class Stop:
    """Did the user ask to stop? Set by the signal, read between two pieces of text."""

    asked: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What came."""

    text: str
    usage: Usage | None
    stopped: bool


@dataclass(frozen=True, slots=True)
class Display:
    """How answers are shown."""

    wraps: bool = True  # at words; only on a terminal
    hides_thoughts: bool = False


class Screen:
    """Writes one answer on standard output: the thought between two lines that name it, then the text."""

    def __init__(self, display: Display) -> None:
        self._hides_thoughts = display.hides_thoughts
        self._wrap = WordWrap(terminal_columns) if display.wraps and sys.stdout.isatty() else None
        self._last = "\n"  # the last character that was written
        self._is_in_thought = False

    def show(self, piece: Piece) -> None:
        """Write what is new."""
        if piece.thought and not self._hides_thoughts:
            self._write(piece.thought if self._is_in_thought else THOUGHT_BEGINS + piece.thought)
            self._is_in_thought = True
        if piece.text:
            self._end_thought()
            self._write(piece.text)

    def end(self) -> None:
        """End the line."""
        self._end_thought()
        if self._last != "\n":
            self._write("\n")

    def _end_thought(self) -> None:
        if self._is_in_thought:
            self._write(THOUGHT_ENDS if self._last == "\n" else "\n" + THOUGHT_ENDS)
            self._is_in_thought = False

    def _write(self, text: str) -> None:
        self._last = text[-1]
        sys.stdout.write(self._wrap.push(text) if self._wrap else text)
        sys.stdout.flush()


def stream_answer(ask: Callable[[], Generator[Piece, None, None]], display: Display) -> Answer:
    """Print an answer while it comes. Always ends with a new line. Keys that are typed meanwhile are not echoed."""
    texts: list[str] = []
    usage, screen = None, Screen(display)
    try:
        with keys_not_echoed(), interruptible() as stop, closing(ask()) as pieces:
            for piece in pieces:
                texts.append(piece.text)
                screen.show(piece)
                usage = piece.usage or usage
                if stop.asked:
                    break
    finally:
        screen.end()
    return Answer("".join(texts), usage, stop.asked)


@contextmanager
def interruptible() -> Iterator[Stop]:
    """Ctrl-C becomes a wish: a step of the engine is never torn. A second one is for those who cannot wait."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def print_figures(usage: Usage | None, load_seconds: float | None = None) -> None:
    """What --verbose says, on standard error."""
    lines = {} if load_seconds is None else {"load time": f"{load_seconds:.2f} s"}
    if usage is not None:
        lines |= {
            "prompt tokens": f"{usage.prompt}",
            "cached tokens": f"{usage.cached}",
            "time to first token": f"{usage.first_token_seconds:.3f} s",
            "output tokens": f"{usage.output} in {usage.seconds:.2f} s",
            "tokens per second": f"{usage.tokens_per_second:.1f}" if usage.tokens_per_second else "-",
        }
    for name, value in lines.items():
        print(f"{name + ':':<21}{value}", file=sys.stderr, flush=True)
