"""The real model's vocabulary, and a small one like SentencePiece's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.engine.model_files import read_model_text
from quire.grammar.grammar import Backend, GrammarVocabulary, open_backend
from quire.text.tokenizer import Tokenizer
from quire.weights.checkpoint import open_checkpoint


@pytest.fixture(scope="session")
def words(model_file: Path) -> GrammarVocabulary:
    model_text = read_model_text(open_checkpoint(model_file))
    assert model_text.tokenizer is not None
    return GrammarVocabulary(model_text.tokenizer, model_text.tokenizer.num_tokens, model_text.eos_ids)


@pytest.fixture(scope="session")
def backend(words: GrammarVocabulary) -> Backend:
    return open_backend(words)


@pytest.fixture(scope="session")
def sentencepiece() -> GrammarVocabulary:
    """It writes a space before every text, as Llama 2 does, and has bytes for what it cannot spell."""
    pieces = ["▁", "{", "}", '"', ":", ",", '▁"', '{"', '":', "▁{", "name", "▁name", "a", "n", "m", "e", "1", "2", "▁1"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [0.0] * 259 + [-float(len(pieces) - len(piece)) for piece in pieces]
    keys: dict[str, Any] = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    return GrammarVocabulary(tokenizer, len(tokens) + 13, (2,))  # the model's head is padded
