"""Reads `tiktoken.model`, which Kimi-K2 has instead of a `tokenizer.json`.

A line holds the bytes of a token, in base64, and its rank, which is its id. tiktoken joins the two neighbours that make
the token of the lowest rank. As merges that is every way to make a token from two others, in the order of ranks. Of
these ways only one ever occurs, since the parts of a token are joined in the same order wherever it stands. A word that
is a token is taken whole.

The rule that cuts text into words is not in the file but in Python code beside it, which is not run. It is recognized
by the name of that code.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models

from quire.text.checkpoint_files import CONFIG, TIKTOKEN
from quire.text.errors import UnsupportedTokenizer
from quire.text.pieces import BYTE_OF
from quire.text.pretokenizers import cutting

_CHAR_OF = {byte: char for char, byte in BYTE_OF.items()}
_CODE, _RULE = "tokenization_kimi.", "kimi-k2"
_NUM_RESERVED = 256  # special tokens after the others; those that the configuration does not name are never used


def read_encoder(folder: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of a folder. `config` is its tokenizer_config.json."""
    code = (config.get("auto_map") or {}).get("AutoTokenizer")
    name = code[0] if isinstance(code, list) and code else code
    if not str(name).startswith(_CODE):
        raise UnsupportedTokenizer(
            f"{TIKTOKEN} does not say how text is cut into words, and {CONFIG} names {name!r}, whose rule Quire does "
            "not know. Use a GGUF file of the model, or a copy of it with a tokenizer.json."
        )
    ranks = _read_ranks(folder / TIKTOKEN)
    vocab = {_spelled(token): rank for token, rank in ranks.items()}
    rule = cutting(_RULE)
    encoder = tokenizers.Tokenizer(models.BPE(vocab, _merges(ranks), ignore_merges=rule.whole_words))
    encoder.pre_tokenizer = rule.build()
    encoder.decoder = decoders.ByteLevel()
    # All of them are special, whatever their flags say: tiktoken never finds them in the text of a user.
    encoder.add_tokens([AddedToken(text, special=True, normalized=False) for text in _special(config, len(ranks))])
    return encoder


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (OSError, ValueError) as error:
        raise UnsupportedTokenizer(f"{path.name} cannot be read: {error}. Download the file again.") from error
    if sorted(ranks.values()) != list(range(len(ranks))) or len({*map(len, ranks)} & {1}) == 0:
        raise UnsupportedTokenizer(f"{path.name} is incomplete: its ranks are not 0, 1, 2, … Download the file again.")
    return ranks


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[str, str]]:
    found = [
        (rank, token[:cut], token[cut:])
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    found.sort(key=lambda merge: merge[0])
    return [(_spelled(left), _spelled(right)) for _, left, right in found]


def _special(config: Mapping[str, Any], first: int) -> list[str]:
    """The names of the special tokens, in the order of their ids."""
    declared = config.get("added_tokens_decoder") or {}
    names = {int(i): token["content"] for i, token in declared.items()}
    if outside := [i for i in names if not first <= i < first + _NUM_RESERVED]:
        raise UnsupportedTokenizer(f"added_tokens_decoder in {CONFIG} has the id {outside[0]}, which is not special.")
    return [names.get(i, f"<|reserved_token_{i}|>") for i in range(first, first + _NUM_RESERVED)]


def _spelled(token: bytes) -> str:
    """The spelling of a token in byte-level vocabularies."""
    return "".join(_CHAR_OF[byte] for byte in token)
