"""Suggestions for a misspelled name: similar ones among the models that are here and well-known ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from .names import DEFAULT_TAG, HUB

# Models of Ollama's library whose architectures Quire supports; the first two need no registry.
KNOWN_NAMES = (
    *("smollm2:135m", "smollm2:latest", "smollm2:360m", "smollm2:1.7b", "tinyllama:1.1b"),
    *("llama3.2:1b", "llama3.2:3b", "llama3.1:8b", "llama3:8b", "mistral:7b"),
    *("qwen2.5:0.5b", "qwen2.5:1.5b", "qwen2.5:3b", "qwen2.5:7b", "qwen2.5-coder:1.5b", "qwen2.5-coder:7b"),
    *("qwen3:0.6b", "qwen3:1.7b", "qwen3:4b", "qwen3:8b", "deepseek-r1:1.5b", "deepseek-r1:7b"),
)
MIN_SIMILARITY = 0.8  # of 1
MAX_NAMES = 3


def close_names(text: str, known: Iterable[str]) -> list[str]:
    """Known names that are similar, the most similar first. Without a tag in `text`, tags are ignored."""
    names = dict.fromkeys(known)
    plain = _plain(text)
    scores: dict[str, float] = {}
    for name in names:
        spellings = {_plain(name)} | (set() if ":" in plain else {_plain(name).partition(":")[0]})
        scores[name] = max(difflib.SequenceMatcher(None, plain, each).ratio() for each in spellings)
    similar = [name for name in names if scores[name] >= MIN_SIMILARITY and name != text]
    return sorted(similar, key=lambda name: -scores[name])[:MAX_NAMES]


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """A question for the user, with a space before it; empty if no name is similar."""
    names = close_names(text, known)
    listed = " or ".join(name.removesuffix(f":{DEFAULT_TAG}") for name in names)
    return f" Did you mean {listed}?" if names else ""


def _plain(name: str) -> str:
    return name.lower().removeprefix(f"{HUB}/").removesuffix(f":{DEFAULT_TAG}")
