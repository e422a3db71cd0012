"""Names that a user may have meant: close ones among those that are here and those that are well known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .names import DEFAULT_TAG, HUB

# Of Ollama's library, models of architectures that Quire runs; the first two need no registry.
KNOWN_NAMES = (
    *("smollm2:135m", "smollm2:latest", "smollm2:360m", "smollm2:1.7b", "tinyllama:1.1b"),
    *("llama3.2:1b", "llama3.2:3b", "llama3.1:8b", "llama3:8b", "mistral:7b"),
    *("qwen2.5:0.5b", "qwen2.5:1.5b", "qwen2.5:3b", "qwen2.5:7b", "qwen2.5-coder:1.5b", "qwen2.5-coder:7b"),
    *("qwen3:0.6b", "qwen3:1.7b", "qwen3:4b", "qwen3:8b", "deepseek-r1:1.5b", "deepseek-r1:7b"),
)
ALIKE = 0.8  # of 1: how much of two names must be the same
MAX_NAMES = 3


def close_names(text: str, known: Iterable[str]) -> list[str]:
    """The most alike first. A name without a tag is also compared with known names without theirs."""
    names = dict.fromkeys(known)
    asked = _plain(text)
    scores: dict[str, float] = {}
    for name in names:
        spellings = {_plain(name)} | (set() if ":" in asked else {_plain(name).partition(":")[0]})
        scores[name] = max(difflib.SequenceMatcher(None, asked, each).ratio() for each in spellings)
    best = sorted((name for name in names if scores[name] >= ALIKE and name != text), key=lambda each: -scores[each])
    return best[:MAX_NAMES]


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """A question to the user, with a space before it; empty if no name is close."""
    names = close_names(text, known)
    shown = " or ".join(name.removesuffix(f":{DEFAULT_TAG}") for name in names)
    return f" Did you mean {shown}?" if names else ""


def _plain(name: str) -> str:
    return name.lower().removeprefix(f"{HUB}/").removesuffix(f":{DEFAULT_TAG}")
