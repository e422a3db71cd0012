"""A vocabulary from a checkpoint's folder: `tokenizer.json`, or else `tiktoken.model`, and the tokens that the files
beside it declare.

The reference is what `transformers` makes of the same files (`AutoTokenizer`): the ids of a text, and the text of ids.
So the post-processor in `tokenizer.json` alone decides which tokens frame a text: `add_bos_token` and `add_eos_token`
in `tokenizer_config.json` are what it was made from, and are not read where there is a `tokenizer.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, processors

from quire.text import llama_class, marian_vocab, tiktoken_model
from quire.text.checkpoint_files import CONFIG, TIKTOKEN, TOKENIZER, read_object
from quire.text.declared_tokens import declared_tokens
from quire.text.errors import UnsupportedTokenizer
from quire.text.pieces import Lead, PieceStyle, WordStyle
from quire.text.vocabulary import PairFrame, Vocabulary, end_ids

_NO_FRAME = processors.TemplateProcessing(single="$A", special_tokens=[])
_CLEANING = "clean_up_tokenization_spaces"
_ANY_MODEL = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"


def has_json(folder: Path) -> bool:
    """Is the tokenizer of this folder to be read from tokenizer.json, rather than from tiktoken.model?"""
    return (folder / TOKENIZER).is_file() or not (folder / TIKTOKEN).is_file()


def read_vocabulary(folder: Path, extra_eos: Iterable[int] = ()) -> Vocabulary:
    """Read the vocabulary of a folder. `extra_eos`: ends that generation_config.json declares."""
    if marian_vocab.has_marian_files(folder):
        return marian_vocab.read_vocabulary(folder)
    config = read_object(folder / CONFIG)
    encoder = _read(folder / TOKENIZER, config) if has_json(folder) else tiktoken_model.read_encoder(folder, config)
    is_llama = llama_class.is_used(folder, config, encoder)
    if is_llama:
        llama_class.apply(encoder, config)
    if isinstance(encoder.model, models.BPE):
        encoder.model.dropout = None  # for training: it makes encoding random
    special = {token.content for token in encoder.get_added_tokens_decoder().values() if token.special}
    declared = declared_tokens(folder, config, encoder, llama_class.NAMED if is_llama else {})
    encoder.add_tokens(list(declared.added))
    encoder.encode_special_tokens = config.get("split_special_tokens") is True
    encoder.no_truncation()
    encoder.no_padding()
    tokens = encoder.get_added_tokens_decoder()
    ids = {name: encoder.token_to_id(text) for name, text in declared.named.items()}
    pair = _pair_frame(encoder)
    prefix, suffix = _take_frame(encoder)
    return Vocabulary(
        encoder=encoder,
        num_tokens=max(encoder.get_vocab_size(with_added_tokens=True), 1 + max(tokens, default=-1)),
        piece=encoder.id_to_token,
        style=_style(encoder, config),
        added={i: token.content for i, token in tokens.items() if token.content},
        special=frozenset(i for i, token in tokens.items() if token.special or token.content in special),
        named=declared.named,
        bos_id=ids.get("bos_token"),
        eos_id=ids.get("eos_token"),
        eos_ids=end_ids(encoder.token_to_id, [ids.get("eos_token"), *extra_eos]),
        prefix=prefix,
        suffix=suffix,
        pair=pair,
    )


def _read(path: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    if any(name != path.name for name in config.get("fast_tokenizer_files") or ()):
        raise UnsupportedTokenizer(
            f"fast_tokenizer_files in {CONFIG} names a tokenizer for each version of transformers: "
            f"save the one to be used as {path.name}, and take the field out."
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for a missing file and for a bad one
        raise UnsupportedTokenizer(f"{path.name} cannot be read as a tokenizer: {error}") from error


def _pair_frame(encoder: tokenizers.Tokenizer) -> PairFrame | None:
    """Return the tokens that the post-processor puts around two texts. None: it puts none between them."""
    for first, second in (("a", "b"), ("0", "1"), (".", ",")):
        inner = [encoder.encode(text, add_special_tokens=False).ids for text in (first, second)]
        whole = encoder.encode(first, second)
        if not all(inner) or len({*inner[0], *inner[1]}) != len(inner[0]) + len(inner[1]):
            continue
        at = [whole.ids.index(ids[0]) if ids[0] in whole.ids else -1 for ids in inner]
        ends = [start + len(ids) for start, ids in zip(at, inner, strict=True)]
        if at[0] < 0 or at[1] <= ends[0] - 1:
            return None
        prefix, middle, suffix = whole.ids[: at[0]], whole.ids[ends[0] : at[1]], whole.ids[ends[1] :]
        if not middle or [*prefix, *inner[0], *middle, *inner[1], *suffix] != whole.ids:
            return None
        return PairFrame(tuple(prefix), tuple(middle), tuple(suffix), whole.type_ids[at[1]] == 1)
    return None


def _take_frame(encoder: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Remove the post-processor; return the tokens that it puts before and after a text.

    They are found by encoding a text, none of whose tokens they contain, with and without it.
    """
    post_processor, encoder.post_processor = encoder.post_processor, _NO_FRAME
    for text in chain(("a", "0", "."), map(encoder.id_to_token, range(encoder.get_vocab_size()))):
        inner = encoder.encode(text or "").ids
        encoder.post_processor = post_processor or _NO_FRAME
        around, whole = encoder.encode("").ids, encoder.encode(text or "").ids
        encoder.post_processor = _NO_FRAME
        if not around and whole == inner:
            return (), ()
        if inner and not set(inner) & set(around):
            start = next(place for place, token in enumerate([*whole, inner[0]]) if token == inner[0])
            prefix, suffix = whole[:start], whole[start + len(inner) :]
            if [*prefix, *inner, *suffix] == whole and [*prefix, *suffix] == around:
                return tuple(prefix), tuple(suffix)
            break
    raise UnsupportedTokenizer("The post_processor of tokenizer.json does more than to put tokens around a text.")


def _style(encoder: tokenizers.Tokenizer, config: Mapping[str, Any]) -> PieceStyle | WordStyle | str:
    """The spelling of pieces, from the file's decoder; or why tokens cannot be decoded one by one."""
    if config.get(_CLEANING) is True and (not isinstance(encoder.model, models.BPE) or config.get(_ANY_MODEL) is True):
        return f"{_CLEANING} in {CONFIG} rewrites text that has been streamed already. Set it to false"
    if encoder.decoder is None:
        return WordStyle()
    state = json.loads(encoder.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    byte_level = fallback = marked = False
    lead = Lead.NOTHING
    for step in steps:
        match step:
            case {"type": "WordPiece", "prefix": prefix, "cleanup": cleanup} if len(steps) == 1:
                return WordStyle(prefix, cleanup)
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
                return f"the decoder of tokenizer.json has a step {step.get('type')!r}, which needs the whole text"
    if byte_level and (marked or fallback):
        return "the decoder of tokenizer.json mixes bytes and marks"
    return PieceStyle(byte_level, fallback, lead, marked)
