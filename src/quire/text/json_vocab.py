"""A vocabulary from `tokenizer.json`, with what `tokenizer_config.json` beside it says of its special tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from quire.text.errors import UnsupportedTokenizer
from quire.text.pieces import Lead, PieceStyle
from quire.text.vocabulary import Vocabulary, end_ids


def vocabulary(path: Path, config_path: Path | None, extra_eos: Iterable[int]) -> Vocabulary:
    """`extra_eos`: ends that another file declares (a checkpoint's generation_config.json)."""
    encoder = _read(path)
    config = _read_config(config_path)
    encoder.no_truncation()
    encoder.no_padding()
    tokens = encoder.get_added_tokens_decoder()
    added = {i: token.content for i, token in tokens.items() if token.content}
    bos_id, eos_id = (_declared(encoder, config, name) for name in ("bos_token", "eos_token"))
    ends = end_ids(encoder.token_to_id, [eos_id, *extra_eos])
    framed = encoder.encode("", add_special_tokens=True).ids  # what the file's own post-processor puts around a text
    return Vocabulary(
        encoder=encoder,
        num_tokens=max(encoder.get_vocab_size(with_added_tokens=True), 1 + max(tokens, default=-1)),
        piece=encoder.id_to_token,
        style=_style(encoder),
        added=added,
        special=frozenset(i for i, token in tokens.items() if token.special),
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=ends,
        add_bos=bos_id is not None and _flag(config, "add_bos_token", framed[:1] == [bos_id]),
        add_eos=eos_id is not None and _flag(config, "add_eos_token", len(framed) > 0 and framed[-1] == eos_id),
    )


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for a missing file and for a bad one
        raise UnsupportedTokenizer(f"{path.name} cannot be read as a tokenizer: {error}") from error


def _read_config(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedTokenizer(f"{path.name} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise UnsupportedTokenizer(f"{path.name} holds no JSON object.")
    return config


def _flag(config: Mapping[str, Any], name: str, otherwise: bool) -> bool:
    value = config.get(name)
    return value if isinstance(value, bool) else otherwise


def _declared(encoder: tokenizers.Tokenizer, config: Mapping[str, Any], name: str) -> int | None:
    """The id of a token that the configuration names, as plain text or as an object with its content."""
    token = config.get(name)
    text = token.get("content") if isinstance(token, dict) else token
    return encoder.token_to_id(text) if isinstance(text, str) else None


def _style(encoder: tokenizers.Tokenizer) -> PieceStyle | None:
    """The spelling of pieces, from the file's decoder. None: a decoder that does not work token by token."""
    if encoder.decoder is None:
        return None
    state = json.loads(encoder.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    byte_level = fallback = marked = False
    lead = Lead.NOTHING
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                fallback = True
            case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
                marked = True
            case {"type": "Metaspace", "replacement": "▁", **rest}:
                marked = True
                lead = Lead.NOTHING if rest.get("prepend_scheme") == "never" else Lead.MARKS
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                lead = Lead.ONE_SPACE if start else lead
            case {"type": "Fuse"}:
                pass
            case _:
                return None
    return PieceStyle(byte_level, fallback, lead) if byte_level != marked else None
