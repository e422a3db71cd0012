"""The tokens that the files beside `tokenizer.json` declare: which exist, which are special, and their template names.

`transformers` adds these to the vocabulary of `tokenizer.json` when it loads a checkpoint. They are added here in the
same order, because a token that the vocabulary lacks gets the next free id. Checkpoints without `added_tokens_decoder`
in `tokenizer_config.json` are older: there `special_tokens_map.json` and `added_tokens.json` are read as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from quire.text.checkpoint_files import CONFIG, read_object
from quire.text.errors import UnsupportedTokenizer

SPECIAL_MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class DeclaredTokens:
    """`named` are the special tokens that templates read by name; `added` is what the vocabulary must contain."""

    named: Mapping[str, str]
    added: tuple[AddedToken, ...]


def declared_tokens(
    folder: Path, config: Mapping[str, Any], encoder: tokenizers.Tokenizer, defaults: Mapping[str, str]
) -> DeclaredTokens:
    """Read the tokens that `config` (tokenizer_config.json) and the older files in `folder` declare.

    `encoder` is tokenizer.json as it was read; `defaults` are named tokens that the tokenizer's class implies.
    """
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    padding = {"pad_token": encoder.padding["pad_token"]} if encoder.padding and "pad_token" not in config else {}
    tokens = {**padding, **defaults, **_tokens_of(config)} | (_tokens_of(extra) if isinstance(extra, dict) else {})
    extras = [] if isinstance(extra, dict) else _listed(extra, CONFIG)
    if "added_tokens_decoder" in config:
        known = _decoder(config["added_tokens_decoder"])
    else:
        older = read_object(folder / SPECIAL_MAP)
        tokens |= _tokens_of(older)
        if "extra_special_tokens" in older:
            extras += [each for each in _listed(older["extra_special_tokens"], SPECIAL_MAP) if each not in extras]
        known = _older_decoder(folder, {*map(_content, tokens.values()), *map(_content, extras)})
        known |= encoder.get_added_tokens_decoder()
        extras = extras or _listed(older.get("additional_special_tokens") or [], SPECIAL_MAP)
    flags = {token.content: token for token in known.values()}
    present = {token.content for token in encoder.get_added_tokens_decoder().values()} | flags.keys()
    ordered = _ordered(tokens)
    missing: dict[str, AddedToken] = {}
    for token in (*ordered.values(), *extras):
        if _content(token) and _content(token) not in present:
            missing.setdefault(_content(token), _special(token))
    named = {name: _content(token) for name, token in ordered.items()}
    named_texts = set(named.values())
    added = [_make_special(token) if token.content in named_texts else token for _, token in sorted(known.items())]
    return DeclaredTokens(named, (*(token for token in added if token.content), *missing.values()))


def _tokens_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that name a token: the standard ones, and others whose name ends in `_token`."""
    return {
        name: _read(value, name)
        for name, value in given.items()
        if (name in NAMES and value is not None) or (name.endswith("_token") and isinstance(value, str | dict))
    }


def _ordered(tokens: Mapping[str, Any]) -> dict[str, Any]:
    """The standard names first, as `transformers` adds them."""
    return {name: tokens[name] for name in (*NAMES, *tokens) if name in tokens}


def _listed(given: Any, source: str) -> list[str | AddedToken]:
    if not isinstance(given, list):
        raise UnsupportedTokenizer(f"{source} holds extra special tokens that are no list, but {type(given).__name__}.")
    return [_read(each, "extra_special_tokens") for each in given]


def _read(value: Any, name: str) -> str | AddedToken:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return AddedToken(value["content"], **{flag: bool(value[flag]) for flag in _FLAGS if flag in value})
    raise UnsupportedTokenizer(f"The token {name!r} of the model is neither text nor an object with a content.")


def _decoder(given: Any) -> dict[int, AddedToken]:
    """`added_tokens_decoder`: a token for each id. The ids only order them."""
    try:
        tokens = {int(place): _read(token, f"added_tokens_decoder.{place}") for place, token in given.items()}
    except (AttributeError, ValueError) as error:
        raise UnsupportedTokenizer(f"added_tokens_decoder in {CONFIG} is no object with ids: {error}") from error
    return {place: token for place, token in tokens.items() if isinstance(token, AddedToken)}


def _older_decoder(folder: Path, special: Iterable[str]) -> dict[int, AddedToken]:
    """`added_tokens.json`: the id of each token."""
    known = set(special)
    found = read_object(folder / ADDED)
    if not all(isinstance(place, int) for place in found.values()):
        raise UnsupportedTokenizer(f"{ADDED} gives a token an id that is no number.")
    return {
        place: AddedToken(text, normalized=text not in known, special=text in known) for text, place in found.items()
    }


def _content(token: str | AddedToken) -> str:
    return token if isinstance(token, str) else str(token.content)


def _special(token: str | AddedToken) -> AddedToken:
    return AddedToken(token, special=True) if isinstance(token, str) else _make_special(token)


def _make_special(token: AddedToken) -> AddedToken:
    """Make a token special: tokens with a name are never printed."""
    token.special = True
    return token
