"""The contract of constrained decoding: a constraint is compiled once, and every answer has its own state.

    grammar = backend.compile(constraint)
    state = grammar.start()
    state.fill_mask(bits)                 # which tokens may come next
    state.accept([token])                 # the token that was sampled
    state.forced_tokens()                 # the only tokens that can follow: they need not be sampled
    state.must_stop                       # the answer is complete, and nothing may follow

Only the backend's module imports its library. It is opened with the first constrained request, so an installation
without the library serves all other requests.
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
    """This engine cannot constrain answers."""

    code = "grammar_unavailable"
    status = 501


class GrammarState(Protocol):
    """The position of one answer in a grammar. Used by one thread at a time."""

    @property
    def must_stop(self) -> bool:
        """Is the answer complete, so that nothing may follow?"""

    @property
    def error(self) -> QuireError | None:
        """Why the grammar has failed: a token that was not allowed, or a limit."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Advance by these tokens."""

    def forced_tokens(self) -> list[int]:
        """The only tokens that can follow, as the tokenizer encodes their text; empty where there is a choice."""

    def fill_mask(self, bits: Array, drafts: Sequence[int] = ()) -> None:
        """Set a bit for each token that may come next, and after each draft: uint32 [1 + drafts, words], zero before.

        The masks after a draft that is not allowed stay zero. The state does not change.
        """


class Grammar(Protocol):
    """A compiled constraint."""

    def start(self) -> GrammarState:
        """The state at the start of an answer."""


class Backend(Protocol):
    """A compiler of constraints for the vocabulary of one model."""

    def compile(self, constraint: Constraint) -> Grammar:
        """Compile a constraint, which may take seconds. Raises InvalidRequest with the problem and its position."""


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The tokens of one model: its tokenizer, the size of its output, and the tokens that end an answer."""

    tokenizer: Tokenizer
    vocab_size: int
    end_ids: tuple[int, ...]


def open_backend(vocabulary: GrammarVocabulary | None, open_objects: bool = False) -> Backend:
    """The backend for a vocabulary, with the setting `open_objects`. Raises GrammarUnavailable if there is none."""
    if vocabulary is None:
        raise GrammarUnavailable("The model has no tokenizer, so its answers cannot be constrained.")
    if not vocabulary.end_ids:
        raise GrammarUnavailable("The model has no end-of-text token, so its answers cannot be constrained.")
    try:
        guidance = import_module("quire.grammar.guidance")  # late, because its library may be absent
    except ModuleNotFoundError as error:
        raise GrammarUnavailable(
            f"Constrained answers need the package {error.name}, which is not installed on the server."
        ) from error
    backend: Backend = guidance.Guidance(vocabulary, open_objects)
    return backend
