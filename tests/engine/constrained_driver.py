"""Constrained requests through a core driven by hand: a toy model whose words are single characters."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from quire.grammar.grammar import Backend
from quire.types.request import Constraint, ConstraintKind, SamplingParams
from quire.weights.checkpoint import open_checkpoint
from tests.engine.driver import GREEDY_64, Driver
from tests.models.toys import some_tokens

ENDS = (129, 130)
PROMPT = some_tokens(21)


def regex(text: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, text)


def text_of(tokens: list[int]) -> str:
    return "".join(chr(token) for token in tokens if token < 128)


def make_driver(folder: Path, **settings: Any) -> Driver:
    return Driver(checkpoint=open_checkpoint(folder), **settings)


def ask(driver: Driver, name: str, constraint: Constraint, sampling: SamplingParams = GREEDY_64, **more: Any) -> None:
    driver.submit(name, more.pop("prompt", PROMPT), sampling, eos_token_ids=ENDS, constraint=constraint, **more)


class Gate:
    """Holds up the real backend of a driver until it is opened."""

    def __init__(self, driver: Driver) -> None:
        self.opened = threading.Event()
        compiler = driver.core._grammars._compiler
        opens = compiler._open_backend

        def waits() -> Backend:
            self.opened.wait(60)
            return opens()

        compiler._open_backend = waits
