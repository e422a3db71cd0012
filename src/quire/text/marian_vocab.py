"""The vocabulary of a Marian model: source.spm (SentencePiece) splits text into pieces, and vocab.json has their ids.

A piece that vocab.json lacks becomes the unknown token. Language codes such as >>fra<< are tokens, of which a text has
one at its beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, models

from quire.text.checkpoint_files import CONFIG, SOURCE_PIECES, TOKENIZER, VOCAB, read_object
from quire.text.errors import UnsupportedTokenizer
from quire.text.gguf_vocab import TokenType, set_normalizer
from quire.text.pieces import PieceStyle
from quire.text.vocabulary import Vocabulary

UNSEEN = "\uffff"  # prefix for pieces that text is never split into
SPECIAL = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how protocol buffers store a field


class SentencePieces(NamedTuple):
    """The contents of a SentencePiece file."""

    scores: Mapping[str, float]  # of the pieces that text is split into
    options: Mapping[str, Any]  # of its normalizer, under the names of GGUF files
    is_unigram: bool

    def get(self, name: str, default: Any) -> Any:
        """Return an option of the normalizer."""
        return self.options.get(name, default)


def has_marian_files(folder: Path) -> bool:
    """Return whether the folder has these files and no tokenizer.json."""
    return (folder / SOURCE_PIECES).is_file() and not (folder / TOKENIZER).is_file()


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a folder."""
    config = read_object(folder / CONFIG)
    if config.get("separate_vocabs") is True:
        raise UnsupportedTokenizer(f"separate_vocabs in {CONFIG} is true: source and target must have one {VOCAB}.")
    ids = _ids(read_object(folder / VOCAB))
    named = {name: _named(config, name, default) for name, default in SPECIAL.items()}
    if missing := [text for name, text in named.items() if text not in ids and name != "pad_token"]:
        raise UnsupportedTokenizer(f"{VOCAB} lacks {' and '.join(missing)}.")
    source = read_pieces(folder / SOURCE_PIECES)
    if not source.is_unigram:
        raise UnsupportedTokenizer(f"{SOURCE_PIECES} is not a unigram model; only unigram models are supported.")
    special = {ids[text] for text in named.values() if text in ids}
    codes = {i for text, i in ids.items() if text.startswith(">>") and text.endswith("<<")}
    texts = {i: text for text, i in ids.items()}
    lowest, unknown = min(source.scores.values(), default=0.0), ids[named["unk_token"]]
    seen = {*source.scores, *(texts[i] for i in special | codes)}
    names = [text if text in seen else f"{UNSEEN}{text}" for _, text in sorted(texts.items())]
    kept = [(name, source.scores.get(name, lowest)) for name in names]
    beyond = [(piece, score) for piece, score in source.scores.items() if piece not in ids]
    encoder = tokenizers.Tokenizer(models.Unigram([*kept, *beyond], unk_id=unknown, byte_fallback=False))
    lead = set_normalizer(encoder, source, removes_spaces=True)
    added = {i: texts[i] for i in sorted(special | codes)}
    encoder.add_tokens([AddedToken(text, special=i in special, normalized=False) for i, text in added.items()])
    return Vocabulary(
        encoder=encoder,
        num_tokens=len(texts),
        piece=texts.get,
        style=PieceStyle(byte_level=False, lead=lead),
        added=added,
        special=frozenset(special),
        named={name: text for name, text in named.items() if text in ids},
        eos_id=ids[named["eos_token"]],
        eos_ids=frozenset((ids[named["eos_token"]],)),
        suffix=(ids[named["eos_token"]],),
        unknown_from=(len(texts), unknown),
    )


def _ids(given: Mapping[str, Any]) -> dict[str, int]:
    ids = {text: i for text, i in given.items() if isinstance(i, int)}
    if sorted(ids.values()) != list(range(len(given))):
        raise UnsupportedTokenizer(f"{VOCAB} must have the ids 0 to {max(len(given) - 1, 0)}, each once.")
    return ids


def _named(config: Mapping[str, Any], name: str, default: str) -> str:
    given = config.get(name)
    return str(given["content"]) if isinstance(given, Mapping) and "content" in given else str(given or default)


# --- files of SentencePiece


def read_pieces(path: Path) -> SentencePieces:
    """Read the pieces with their scores, and the normalizer. A damaged file is refused."""
    scores: dict[str, float] = {}
    options: dict[str, Any] = {}
    kind = 1
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                piece = dict(_fields(value))
                if piece.get(3, TokenType.NORMAL) in (TokenType.NORMAL, TokenType.USER_DEFINED):
                    scores[piece[1].decode()] = struct.unpack("<f", piece.get(2, bytes(4)))[0]
            elif number == 2:
                kind = dict(_fields(value)).get(3, 1)
            elif number == 3:
                found = dict(_fields(value))
                options = {"precompiled_charsmap": found.get(2, b""), "add_space_prefix": bool(found.get(3, 1)),
                           "remove_extra_whitespaces": bool(found.get(4, 1))}  # fmt: skip
    except (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, struct.error) as error:
        raise UnsupportedTokenizer(f"{path.name} cannot be read as a SentencePiece file: {error}") from None
    if not scores:
        raise UnsupportedTokenizer(f"{path.name} has no pieces.")
    return SentencePieces(scores, options, kind == 1)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protocol buffer message: the number of each, and its integer or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        size, at = _varint(data, at) if kind == _BYTES else ({_FIXED32: 4, _FIXED64: 8}[kind], at)
        if at + size > len(data):
            raise ValueError("the file ends early")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint (seven bits per byte, lowest first) and the position after it."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
