"""Quire: one LLM inference engine from a laptop to a cluster. Importing it costs nothing; its parts load when used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.engine.async_llm import AsyncLLM
    from quire.engine.llm import LLM
    from quire.types.answer import Completion, Delta
    from quire.types.errors import QuireError
    from quire.types.request import Constraint, ConstraintKind, SamplingParams

__version__ = "0.1.0"

_LATE = {
    "LLM": "quire.engine.llm",
    "AsyncLLM": "quire.engine.async_llm",
    "Completion": "quire.types.answer",
    "Delta": "quire.types.answer",
    "QuireError": "quire.types.errors",
    "SamplingParams": "quire.types.request",
    "Constraint": "quire.types.request",
    "ConstraintKind": "quire.types.request",
}
__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Constraint",
    "ConstraintKind",
    "Delta",
    "QuireError",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> object:
    """The names of `__all__`, from their modules at first use."""
    if name not in _LATE:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    """What `dir` shows: the names that load at first use too."""
    return sorted({*globals(), *__all__})
