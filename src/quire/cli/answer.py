"""One answer on the terminal: streamed as it comes, stopped by Ctrl-C, with its figures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType

from quire.cli.engine import Engine, Messages, Usage
from quire.types.request import SamplingParams


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


def stream_answer(engine: Engine, prompt: str | Messages, sampling: SamplingParams) -> Answer:
    """Print an answer while it comes. Always ends with a new line."""
    pieces: list[str] = []
    usage = None
    try:
        with interruptible() as stop, closing(engine.stream(prompt, sampling)) as deltas:
            for delta in deltas:
                if delta.text:
                    pieces.append(delta.text)
                    sys.stdout.write(delta.text)
                    sys.stdout.flush()
                usage = delta.usage or usage
                if stop.asked:
                    break
    finally:
        if pieces and not pieces[-1].endswith("\n"):
            print(flush=True)
    return Answer("".join(pieces), usage, stop.asked)


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
