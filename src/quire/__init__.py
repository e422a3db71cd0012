"""Quire: one LLM inference engine from a laptop to a cluster. Importing it costs nothing; its parts load when used."""

from importlib import import_module

__version__ = "0.1.0"

_LATE = {
    "LLM": "quire.engine.llm",
    "AsyncLLM": "quire.engine.async_llm",
    "SamplingParams": "quire.types.request",
    "Constraint": "quire.types.request",
    "ConstraintKind": "quire.types.request",
}
__all__ = ["LLM", "AsyncLLM", "Constraint", "ConstraintKind", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """The names of `__all__`, from their modules at first use."""
    if name not in _LATE:
        raise AttributeError(f"module 'quire' has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
