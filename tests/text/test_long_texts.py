"""Texts of megabytes: other threads run while they are encoded, and what is far too long is not encoded at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from quire.text.tokenizer import CHARS_PER_TOKEN, LONG_TEXT, PIECE_CHARS, Tokenizer
from quire.types.errors import ContextTooLong, InvalidRequest
from quire.weights.checkpoint import open_checkpoint
from tests.text.varied_texts import varied_texts

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def tokenizer(model_file: Path) -> Tokenizer:
    return Tokenizer.from_gguf(open_checkpoint(model_file).metadata)


class Counted:
    """An encoder that counts what it is given."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.num_chars = 0

    def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
        self.num_chars += sum(map(len, texts))
        return self._encoder.encode_batch_fast(texts, **how)


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer):
    text = "The quick brown fox jumps over the lazy dog. " * 10_000
    begun = threading.Event()

    def encode() -> None:
        begun.set()
        tokenizer.encode(text)

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    count = 0
    while thread.is_alive():
        count += 1
    assert count > 10_000  # with the GIL held: what fits into the 5 ms before and after


def test_a_text_that_is_far_too_long_is_refused_after_a_few_pieces(tokenizer, monkeypatch):
    counted = Counted(tokenizer._literal)
    monkeypatch.setattr(tokenizer, "_literal", counted)
    with pytest.raises(ContextTooLong, match=r"more than \d+ tokens.* 1024") as refused:
        tokenizer.encode("word " * 1_000_000, max_tokens=1024)
    assert refused.value.num_prompt >= 1024
    assert counted.num_chars == PIECE_CHARS


def test_a_text_of_the_longest_tokens_is_not_refused_while_it_fits(tokenizer):
    longest = max(range(tokenizer.num_tokens), key=lambda token: len(tokenizer.token_bytes(token)))
    text = tokenizer.token_bytes(longest).decode() * 4000 + "x"
    assert len(text) > 4 * PIECE_CHARS and len(text) > CHARS_PER_TOKEN * 4001
    tokens = tokenizer.encode(text)
    assert len(tokens) < 4100 and tokenizer.encode(text, max_tokens=len(tokens)) == tokens


def test_long_texts_have_the_tokens_of_short_ones(tokenizer):
    """Two calls of the library encode them; both must say the same."""
    for text in varied_texts()[:200]:
        padded = text + "\n" + "x" * LONG_TEXT
        assert tokenizer.encode(padded) == tokenizer._literal.encode(padded, add_special_tokens=False).ids


def test_half_a_surrogate_pair_is_refused_in_a_long_text_too(tokenizer):
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        tokenizer.encode("x" * LONG_TEXT + "\ud800")
    with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
        tokenizer.encode("x" * LONG_TEXT + "\ud800", max_tokens=16)
