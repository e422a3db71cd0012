"""The JSON files beside a checkpoint's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.text.errors import UnsupportedTokenizer

TOKENIZER, CONFIG, GENERATION = "tokenizer.json", "tokenizer_config.json", "generation_config.json"
MODEL_CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
SPEECH_EXTRACTOR = "WhisperFeatureExtractor"  # of preprocessor_config.json
TIKTOKEN = "tiktoken.model"  # in place of tokenizer.json
SOURCE_PIECES, VOCAB = "source.spm", "vocab.json"  # of Marian, in place of tokenizer.json


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedTokenizer(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UnsupportedTokenizer(f"{path.name} holds no JSON object.")
    return found
