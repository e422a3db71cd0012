"""The contract of constrained decoding: a constraint is compiled once, and every text has a state of its own.

    grammar = backend.compile(constraint)
    state = grammar.start()
    state.fill_mask(bits)                 # which tokens may come next
    state.accept([token])                 # the one that came
    state.forced_tokens()                 # what can only come now: it need not be sampled
    state.must_stop                       # the text is whole and cannot go on

Only the backend's own file knows the library behind it. It is opened when the first constrained request comes, so an
installation without the library serves everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from quire.types.errors import QuireError
from quire.types.request import Constraint

if TYPE_CHECKING:
    from quire.text.tokenizer import Tokenizer

Array = NDArray[Any]


class GrammarUnavailable(QuireError):
    """This engine cannot hold any text to a form."""

    code = "grammar_unavailable"
    status = 501


class GrammarState(Protocol):
    """One text on its way through a grammar. Used by one thread at a time."""

    @property
    def must_stop(self) -> bool:
        """Is the text whole, with nothing that could follow?"""

    @property
    def error(self) -> QuireError | None:
        """Why the text cannot be followed any further: a token that was not allowed, or a limit."""

    def accept(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""

    def forced_tokens(self) -> list[int]:
        """The tokens that alone can come next, as the tokenizer writes their text; empty where there is a choice."""

    def fill_mask(self, bits: Array, drafts: Sequence[int] = ()) -> None:
        """One bit for each token that may come next, or after a draft: uint32 [1 + drafts, words], all zero before.

        After a draft that may not come, masks stay zero. The state is then as it was.
        """


class Grammar(Protocol):
    """A compiled constraint."""

    def start(self) -> GrammarState:
        """The state of a text that has not begun."""


class Backend(Protocol):
    """What compiles, for the words of one model."""

    def compile(self, constraint: Constraint) -> Grammar:
        """May take seconds. Raises InvalidRequest that says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Words:
    """The tokens of one model: how they are spelled, how many its head has, which end a text."""

    tokenizer: Tokenizer
    vocab_size: int
    end_ids: tuple[int, ...]


def open_backend(words: Words | None, open_objects: bool = False) -> Backend:
    """The backend for these words, with the setting `open_objects`. Raises GrammarUnavailable if there is none."""
    if words is None:
        raise GrammarUnavailable("The model came without a tokenizer, so its answers cannot be held to a form.")
    if not words.end_ids:
        raise GrammarUnavailable("The model names no token that ends a text, so its answers cannot be held to a form.")
    try:
        guidance = import_module("quire.grammar.guidance")  # here, because its library may be absent
    except ModuleNotFoundError as error:
        raise GrammarUnavailable(
            f"Constrained answers need the package {error.name}, which is not installed here."
        ) from error
    backend: Backend = guidance.Guidance(words, open_objects)
    return backend
