"""Words to ask with. Every Python has them: they are those of its own reference manual."""

from __future__ import annotations

from pydoc_data import topics

from quire.text.tokenizer import Tokenizer

WORDS_FROM = 100_000  # characters: some thousand different tokens
MIN_LETTERS = 3


def plain_text() -> str:
    """English, with Python in between."""
    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


def word_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that are a space and a word. To a mixture of them a model answers in text, not in pieces of characters."""
    found = sorted(set(tokenizer.encode(plain_text()[:WORDS_FROM])))
    pieces = ((token, tokenizer.decode([token])) for token in found)
    return tuple(token for token, text in pieces if text[:1] == " " and text[1:].isalpha() and len(text) > MIN_LETTERS)
