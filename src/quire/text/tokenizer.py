"""Text to tokens and back.

Law: text from a user never becomes a special token unless the caller sets `special=True`, and decoding is defined on
bytes, token by token, so that a stream of tokens and the whole text always agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from quire.text import gguf_vocab, json_vocab
from quire.text.errors import UnsupportedTokenizer
from quire.text.pieces import Lead, PieceStyle, WordStyle
from quire.text.vocabulary import Vocabulary
from quire.types.errors import ContextTooLong, InvalidRequest

LONG_TEXT = 4096  # characters; from here on the GIL is released
CHARS_PER_TOKEN = 8  # a text with more characters than this per allowed token is first counted in pieces
PIECE_CHARS = 1 << 16
NEIGHBOUR = "☺"  # merges with no other character in the vocabularies that begin texts with a space


class Tokenizer:
    """One model's tokenizer. Threads may share it: only a memo changes after construction."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._searching = vocabulary.encoder
        self._literal = _literal(vocabulary)
        self._bytes: dict[int, bytes] = {}
        self.num_tokens = vocabulary.num_tokens
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = vocabulary.special
        self.special_names = tuple(name for i, name in vocabulary.added.items() if i in vocabulary.special)
        self.named_tokens = vocabulary.named  # special tokens as templates read them: bos_token, pad_token
        self.prefix, self.suffix, self.pair_frame = vocabulary.prefix, vocabulary.suffix, vocabulary.pair

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.ggml.*` keys of a GGUF file."""
        return cls(gguf_vocab.read_vocabulary(metadata))

    @classmethod
    def from_folder(cls, folder: str | Path, extra_eos: Iterable[int] = ()) -> Tokenizer:
        """From `tokenizer.json` and the files beside it, such as `tokenizer_config.json`."""
        return cls(json_vocab.read_vocabulary(Path(folder), extra_eos))

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        add_bos: bool = True,
        add_eos: bool = True,
        max_tokens: int | None = None,
    ) -> list[int]:
        """Tokens of `text`. With `special`, the names of special tokens in it are those tokens (a rendered template).

        The tokens that the model's own rule puts before and after a text are added, unless `add_bos` or `add_eos` is
        false. If a rendered template already begins with them, they are not added twice.
        A text that is far longer than `max_tokens` raises ContextTooLong before all of it is encoded.
        """
        encoder = self._searching if special else self._literal
        try:
            if max_tokens is not None and len(text) > CHARS_PER_TOKEN * max_tokens:
                _check_length(encoder, text, max_tokens)
            ids = self._known(_ids(encoder, text))
        except (UnicodeEncodeError, TypeError) as error:
            raise _not_text(text) from error
        has_prefix = special and tuple(ids[: len(self.prefix)]) == self.prefix
        if self.prefix and add_bos and not has_prefix:
            ids = [*self.prefix, *ids]
        return [*ids, *self._vocabulary.suffix] if self._vocabulary.suffix and add_eos else ids

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode plain texts, each with the tokens around it, in several threads."""
        try:
            encodings = self._literal.encode_batch_fast(list(texts), add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            raise _not_text(next(text for text in texts if not _is_text(text))) from None
        return [[*self.prefix, *self._known(each.ids), *self.suffix] for each in encodings]

    def _known(self, ids: list[int]) -> list[int]:
        """The ids, with the unknown token for pieces that the model has no token for."""
        if self._vocabulary.unknown_from is None:
            return ids
        first, unknown = self._vocabulary.unknown_from
        return [unknown if each >= first else each for each in ids]

    def encode_after(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Tokens of a text that continues another: without the space that SentencePiece puts before a text."""
        style = self._vocabulary.style
        has_lead = isinstance(style, PieceStyle) and style.lead is not Lead.NOTHING
        before = self.encode(NEIGHBOUR, add_bos=False, add_eos=False) if has_lead else []
        joined = self.encode(NEIGHBOUR * bool(before) + text, add_bos=False, add_eos=False, max_tokens=max_tokens)
        if joined[: len(before)] == before:
            return joined[len(before) :]
        return self.encode(text, add_bos=False, add_eos=False, max_tokens=max_tokens)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD. `continues`: other text comes before it."""
        skipped = self.special_ids if skip_special else frozenset()
        chunks = [self.token_bytes(i) for i in ids if i not in skipped]
        if not continues:
            for place, i in enumerate(i for i in ids if i not in skipped):
                if chunks[place]:
                    chunks[place] = self.opening_bytes(i)
                    break
        return b"".join(chunks).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; a special one gives its name. Empty for ids that only pad the model's head."""
        found = self._bytes.get(token)
        if found is None:
            piece = self._piece(token)
            found = self._bytes[token] = piece if isinstance(piece, bytes) else self._style.piece_bytes(piece)
        return found

    def opening_bytes(self, token: int) -> bytes:
        """The bytes of the first token with text: SentencePiece drops the space that it has added."""
        piece = self._piece(token)
        return piece if isinstance(piece, bytes) else self._style.opening_bytes(piece)

    def token_id(self, name: str) -> int | None:
        """The id of the token with exactly this spelling in the vocabulary."""
        found: int | None = self._searching.token_to_id(name)
        return found

    def tokens_named(self, names: Iterable[str]) -> dict[str, int]:
        """Those of the names that are tokens, with their ids."""
        return {name: found for name in names if (found := self.token_id(name)) is not None}

    @property
    def _style(self) -> PieceStyle | WordStyle:
        if isinstance(self._vocabulary.style, str):
            raise UnsupportedTokenizer(f"This tokenizer can only encode: {self._vocabulary.style}.")
        return self._vocabulary.style

    def _piece(self, token: int) -> str | bytes:
        """A token's spelling in the vocabulary, or its bytes where they are known without decoding."""
        if token < 0:
            raise ValueError(f"token ids are not negative: {token}")
        if (text := self._vocabulary.verbatim.get(token)) is not None:
            return text.encode()
        piece = self._vocabulary.piece(token)
        return b"" if piece is None else piece


def _ids(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    """The batch call releases the GIL and skips offsets; for a short text the plain call wakes no other threads."""
    if len(text) < LONG_TEXT:
        encoding = encoder.encode(text, add_special_tokens=False)
    else:
        (encoding,) = encoder.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _check_length(encoder: tokenizers.Tokenizer, text: str, max_tokens: int) -> None:
    """Raise ContextTooLong once the pieces so far have twice the allowed tokens.

    A cut changes only the tokens next to it, and a piece has thousands: cuts add far less than the factor of two.
    """
    count = 0
    for start in range(0, len(text), PIECE_CHARS):
        piece = text[start : start + PIECE_CHARS]
        count += len(encoder.encode_batch_fast([piece], add_special_tokens=False)[0])
        if count > 2 * max_tokens + PIECE_CHARS // LONG_TEXT:
            raise ContextTooLong(count // 2, max_tokens, is_whole=False)


def _literal(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """A second encoder of the same native model that ignores special tokens; switching one would not be thread-safe.

    A unigram model would still find the name of a special token by its score, so there the names are changed too.
    """
    source = vocabulary.encoder
    model = source.model
    special = {name for i, name in vocabulary.added.items() if i in vocabulary.special}
    if isinstance(model, models.Unigram):
        state = json.loads(source.to_str())["model"]
        # Added tokens beyond the model's own are included, or those that are not special would get other ids.
        lowest = min((score for _, score in state["vocab"]), default=0.0)
        beyond = [(name, lowest) for i, name in sorted(vocabulary.added.items()) if i >= len(state["vocab"])]
        pieces = [(f"\uffff{name}" if name in special else name, score) for name, score in [*state["vocab"], *beyond]]
        model = models.Unigram(pieces, unk_id=state["unk_id"], byte_fallback=state.get("byte_fallback", False))
    encoder = tokenizers.Tokenizer(model)
    for part in ("normalizer", "pre_tokenizer"):
        if (value := getattr(source, part)) is not None:
            setattr(encoder, part, value)
    tokens = source.get_added_tokens_decoder()
    encoder.add_tokens([_copy(tokens[i], i in vocabulary.special) for i in sorted(tokens)])
    encoder.encode_special_tokens = True
    return encoder


def _copy(token: AddedToken, special: bool) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=special,
    )


def _is_text(text: object) -> bool:
    return isinstance(text, str) and not any("\ud800" <= char <= "\udfff" for char in text)


def _not_text(text: object) -> InvalidRequest:
    if not isinstance(text, str):
        return InvalidRequest(f"A prompt is text, not {type(text).__name__}.", field="prompt")
    place = next((i for i, char in enumerate(text) if "\ud800" <= char <= "\udfff"), 0)
    return InvalidRequest(
        f"The text is not valid Unicode: character {place} is one half of a surrogate pair.", field="prompt"
    )
