"""English text that every Python installation has: its reference manual."""

from __future__ import annotations

from pydoc_data import topics

from quire.text.tokenizer import Tokenizer

WORDS_FROM = 100_000  # characters, which have some thousand different tokens
MIN_LETTERS = 3


def sample_text() -> str:
    """Return the whole text: English mixed with Python."""
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def word_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that are a space and a word. To prompts made of them a model answers in words."""
    tokens = sorted(set(tokenizer.encode(sample_text()[:WORDS_FROM])))
    pieces = ((token, tokenizer.decode([token])) for token in tokens)
    return tuple(token for token, text in pieces if text[:1] == " " and text[1:].isalpha() and len(text) > MIN_LETTERS)
