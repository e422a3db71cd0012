"""A vocabulary from the metadata of a GGUF file.

The file stores five kinds: "gpt2" (byte-level BPE with merges), "gemma4" (BPE with merges over text in which a mark
stands for a space), "llama" (SentencePiece BPE: pieces with scores, no merges), "t5" (SentencePiece unigram) and "bert"
(WordPiece). Each becomes a `tokenizers` model, so that all text is cut by native code.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers

from quire.text.errors import UnsupportedTokenizer
from quire.text.gguf_wordpiece import as_written, wordpiece_encoder
from quire.text.pieces import MARK, Lead, PieceStyle, WordStyle
from quire.text.pretokenizers import cutting
from quire.text.vocabulary import PairFrame, Vocabulary, end_ids

_KEY = "tokenizer.ggml."
_NAMED = {  # special tokens, as templates and as the container name them
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding",
    "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip


class TokenType(enum.IntEnum):
    """The type of each token in the container."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Kind:
    """Defaults of a kind of tokenizer."""

    bos_id: int | None = None
    eos_id: int | None = None
    unknown_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False


# Options that no kind below honours.
_ALTERING = ("normalizer.lowercase", "normalizer.strip_accents", "add_sep_token", "suppress_tokens")
_ALTERING_TEXT = ("add_sep_token", "suppress_tokens")
# A space before a text is put there for scored pieces. The tokenizers with merges of published models have none.
_ALTERING_MERGES = ("add_space_prefix",)

_KINDS = {
    "gpt2": _Kind(),
    "gemma4": _Kind(add_bos=True),
    "llama": _Kind(bos_id=1, eos_id=2, unknown_id=0, add_bos=True),
    "t5": _Kind(eos_id=1, unknown_id=2, add_eos=True),
    "bert": _Kind(unknown_id=100),
}


class HasOptions(Protocol):
    """Options of a tokenizer by the names that GGUF files have for them."""

    def get(self, name: str, default: Any) -> Any: ...


class GgufTokens:
    """The tokenizer's metadata, checked, with the defaults of its kind."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model: str = self.get("model", "")
        if self.model not in _KINDS:
            raise UnsupportedTokenizer(
                f"The model file has a tokenizer of the kind {self.model or 'none'!r}; Quire reads "
                f"{', '.join(_KINDS)}. Use a checkpoint folder with a tokenizer.json instead."
            )
        of_kind = _ALTERING_TEXT if self.model == "bert" else _ALTERING  # WordPiece norms text as BERT does
        altering = (*of_kind, *(_ALTERING_MERGES if self.model in ("gpt2", "gemma4") else ()))
        if option := next((name for name in altering if self.get(name, False)), None):
            raise UnsupportedTokenizer(
                f"The model file sets {_KEY}{option}, which Quire does not read for a tokenizer of the kind "
                f"{self.model!r}. Use a checkpoint folder with a tokenizer.json instead."
            )
        self.kind = _KINDS[self.model]
        self.tokens: list[str] = self.need("tokens", list)
        if self.model == "bert":
            self.tokens = as_written(self.tokens)
        self.types: Sequence[int] = self.get("token_type", None) or [TokenType.NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise self.broken(f"{len(self.types)} token types for {len(self.tokens)} tokens")
        self.bos_id = self.token_id("bos_token_id", self.kind.bos_id)
        self.eos_id = self.token_id("eos_token_id", self.kind.eos_id)
        self.unknown_id = self.token_id("unknown_token_id", self.kind.unknown_id)
        ids = {name: self.token_id(f"{key}_token_id", None) for name, key in _NAMED.items()}
        if self.model == "bert":
            ids |= {
                "cls_token": self.token_id("cls_token_id", 101),
                "sep_token": self.token_id("seperator_token_id", 102),
            }
        ids |= {"bos_token": self.bos_id, "eos_token": self.eos_id, "unk_token": self.unknown_id}
        self.named = {name: i for name, i in ids.items() if i is not None}  # as templates name them

    def get(self, name: str, default: Any) -> Any:
        """A value in Python's own types: a reader may hand out arrays, and a loop over those is slow."""
        value: Any = self._metadata.get(_KEY + name)
        if hasattr(value, "tolist"):
            value = value.tolist()
        return default if value is None else value

    def need(self, name: str, of: type) -> Any:
        """A list that the kind requires."""
        value = self.get(name, None)
        if value is None or len(value) == 0:
            raise self.broken(f"no {_KEY}{name}")
        return of(value)

    def token_id(self, name: str, default: int | None) -> int | None:
        token = self.get(name, default)
        if token is None or 0 <= token < len(self.tokens):
            return None if token is None else int(token)
        if token == default:
            return None
        raise self.broken(f"{_KEY}{name} is {token}, outside of the {len(self.tokens)} tokens")

    def frame(self, name: str, otherwise: bool, is_fixed: bool = False) -> tuple[int, ...]:
        """The token of this name if the file, or else its kind, puts it around every text. `is_fixed`: the kind does
        so whatever the file says."""
        is_added = otherwise if is_fixed else bool(self.get(f"add_{name}", otherwise))
        return (self.named[name],) if is_added and name in self.named else ()

    def scores(self) -> list[float]:
        scores: list[float] = self.need("scores", list)
        if len(scores) != len(self.tokens):
            raise self.broken(f"{len(scores)} scores for {len(self.tokens)} tokens")
        return scores

    def broken(self, what: str) -> UnsupportedTokenizer:
        return UnsupportedTokenizer(f"The model file's tokenizer is incomplete: {what}. Download the file again.")


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary that the metadata describes."""
    source = GgufTokens(metadata)
    add_bos = source.kind.add_bos
    style: PieceStyle | WordStyle
    if source.model == "gpt2":
        rule = cutting(source.get("pre", "default"))
        encoder, style, add_bos = _byte_level(source, rule), PieceStyle(byte_level=True), rule.add_bos
    elif source.model == "gemma4":
        encoder, style = _marked_merges(source)
    elif source.model == "llama":
        encoder, style = _by_score(source)
    elif source.model == "bert":
        encoder, style = _wordpiece(source)
    else:
        encoder, style = _unigram(source)
    declared = [source.eos_id, *(source.token_id(name, None) for name in ("eot_token_id", "eom_token_id"))]
    ends = end_ids(encoder.token_to_id, declared)
    added, special = _added(source, ends)
    encoder.add_tokens([AddedToken(text, special=i in special, normalized=False) for i, text in added.items()])
    tokens = source.tokens
    # Published Gemma 4 files say that there is no such token, which is wrong: the model does not work without it.
    prefix = source.frame("bos_token", add_bos, is_fixed=source.model == "gemma4")
    suffix = source.frame("eos_token", source.kind.add_eos)
    frame = _pair_frame(source, prefix, suffix)
    return Vocabulary(
        encoder=encoder,
        num_tokens=len(tokens),
        piece=lambda i: tokens[i] if 0 <= i < len(tokens) else None,
        style=style,
        added=added,
        special=special,
        named={name: tokens[i] for name, i in source.named.items()},
        verbatim=added,
        bos_id=source.bos_id,
        eos_id=source.eos_id,
        eos_ids=ends,
        prefix=frame.prefix if source.model == "bert" else prefix,
        suffix=frame.suffix if source.model == "bert" else suffix,
        pair=frame if source.model == "bert" or metadata.get("general.architecture") == "bert" else None,
    )


def _pair_frame(source: GgufTokens, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> PairFrame:
    """Return the tokens around two texts: as BERT has them, or with Unigram as XLM-R has them."""
    if source.model == "bert":
        ends = (source.named["sep_token"],) if "sep_token" in source.named else ()
        return PairFrame((source.named["cls_token"],) if "cls_token" in source.named else (), ends, ends, True)
    return PairFrame(prefix, suffix + suffix, suffix, False)


def _wordpiece(source: GgufTokens) -> tuple[tokenizers.Tokenizer, WordStyle]:
    unknown = "[UNK]" if source.unknown_id is None else source.tokens[source.unknown_id]
    return wordpiece_encoder(source.tokens, unknown, lowercase=bool(source.get("normalizer.lowercase", True)))


def _added(source: GgufTokens, ends: frozenset[int]) -> tuple[dict[int, str], frozenset[int]]:
    """Tokens that text is searched for, by id, and those of them that are special."""
    ordinary = {
        int(TokenType.NORMAL),
        int(TokenType.UNUSED),
        int(TokenType.BYTE),
    }  # plain numbers: compared 50,000 times
    others = [(i, kind) for i, kind in enumerate(source.types) if kind not in ordinary]
    special = {i for i, kind in others if kind in (TokenType.CONTROL, TokenType.UNKNOWN)} | ends
    if source.bos_id is not None:
        special.add(source.bos_id)
    users = {i for i, kind in others if kind == TokenType.USER_DEFINED}
    return {i: source.tokens[i] for i in sorted(special | users) if source.tokens[i]}, frozenset(special)


def _by_merges(source: GgufTokens, **options: Any) -> tokenizers.Tokenizer:
    merges = [tuple(merge.split(" ")) for merge in source.need("merges", list)]
    vocab = {piece: i for i, piece in enumerate(source.tokens)}
    try:
        return tokenizers.Tokenizer(models.BPE(vocab, merges, **options))
    except Exception as error:  # the library raises a bare Exception: a merge of pieces that are not in the vocabulary
        raise source.broken(f"the merges do not fit the vocabulary ({error})") from error


def _byte_level(source: GgufTokens, rule: Any) -> tokenizers.Tokenizer:
    encoder = _by_merges(source, ignore_merges=rule.whole_words)
    if (normalizer := rule.normalizer()) is not None:
        encoder.normalizer = normalizer
    encoder.pre_tokenizer = rule.build()
    return encoder


def _marked_merges(source: GgufTokens) -> tuple[tokenizers.Tokenizer, PieceStyle]:
    """As Gemma's tokenizer.json has it: no words are cut, and no space is put before the text."""
    unknown = None if source.unknown_id is None else source.tokens[source.unknown_id]
    encoder = _by_merges(source, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    encoder.normalizer = normalizers.Replace(" ", MARK)
    return encoder, PieceStyle(byte_level=False, byte_fallback=True)


def _by_score(source: GgufTokens) -> tuple[tokenizers.Tokenizer, PieceStyle]:
    """SentencePiece BPE joins the neighbours whose union has the best score; as merges: every way to make a piece."""
    vocab = {piece: i for i, piece in enumerate(source.tokens)}
    unknown = None if source.unknown_id is None else source.tokens[source.unknown_id]
    merges = _merges(source, source.scores())
    model = models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    encoder = tokenizers.Tokenizer(model)
    lead = set_normalizer(encoder, source, removes_spaces=False)
    return encoder, PieceStyle(byte_level=False, byte_fallback=True, lead=lead)


def _merges(source: GgufTokens, scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best score first; ties as the published conversions break them.

    Control tokens take no part, so no text can be merged into one.
    """
    joinable = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    pieces = {
        piece: score for piece, score, kind in zip(source.tokens, scores, source.types, strict=True) if kind in joinable
    }
    found = [
        (-score, -cut, cut - len(piece), piece[:cut], piece[cut:])
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    found.sort(key=lambda merge: merge[:3])
    return [merge[3:] for merge in found]


def _unigram(source: GgufTokens) -> tuple[tokenizers.Tokenizer, PieceStyle]:
    pieces = list(zip(source.tokens, source.scores(), strict=True))
    fallback = TokenType.BYTE in source.types
    encoder = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=source.unknown_id, byte_fallback=fallback))
    lead = set_normalizer(encoder, source, removes_spaces=True)
    return encoder, PieceStyle(byte_level=False, byte_fallback=fallback, lead=lead)


def set_normalizer(encoder: tokenizers.Tokenizer, source: HasOptions, removes_spaces: bool) -> Lead:
    """Set SentencePiece's normalizer; `removes_spaces` is the kind's default. Return what decoding removes again."""
    steps: list[Any] = []
    charsmap = source.get("precompiled_charsmap", None)
    if charsmap is not None and len(charsmap):
        # Signed in some files, unsigned in others: the same bytes.
        steps.append(normalizers.Precompiled(bytes(int(value) & 0xFF for value in charsmap)))
    if source.get("remove_extra_whitespaces", removes_spaces):
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    # `Metaspace` would put no mark before a text that begins with one.
    prefixed = bool(source.get("add_space_prefix", True))
    steps += [normalizers.Prepend(MARK)] if prefixed else []
    encoder.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", MARK)])
    return Lead.ONE_SPACE if prefixed else Lead.NOTHING
