"""WordPiece vocabularies of GGUF files: words begin with a mark, and the rest of a word has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from quire.text.pieces import MARK, WordStyle

CONTINUED = "##"  # before a piece that continues a word, where pieces are as the model's authors wrote them


def as_written(tokens: Sequence[str]) -> list[str]:
    """Return the pieces as the model's authors wrote them: [CLS], word, ##rest."""
    found = []
    for token in tokens:
        if token.startswith("[") and token.endswith("]"):
            found.append(token)
        else:
            found.append(token[1:] if token.startswith(MARK) else f"{CONTINUED}{token}")
    return found


def wordpiece_encoder(
    tokens: Sequence[str], unknown: str, *, lowercase: bool
) -> tuple[tokenizers.Tokenizer, WordStyle]:
    """Make the encoder of these pieces. Text is cut and normed as BERT does; accents go with capitals."""
    vocab: dict[str, Any] = {piece: i for i, piece in enumerate(tokens)}
    encoder = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=100))
    encoder.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return encoder, WordStyle(CONTINUED, True)
