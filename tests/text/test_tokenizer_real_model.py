"""The bundled model's tokenizer against two oracles, on 1,500 varied texts.

Oracle 1, `published`: `transformers` over a tokenizer.json document as SmolLM2 was published: BPE without an unknown
token, `Digits(individual_digits)` and then GPT-2's `ByteLevel`. The vocabulary and the merges come from the file.
Oracle 2, `plain_bpe`: the definition of byte-level BPE in plain Python with the `regex` package, no native code.

`AutoTokenizer.from_pretrained(gguf_file=...)` is *not* an oracle: it drops the file's pre-tokenizer, so that
whitespace before digits is cut differently ("a\\n\\n 1").
"""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quire.text.tokenizer import Tokenizer
from tests.text.varied_texts import SPECIAL_NAMES, varied_texts

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="module")
def published_file(metadata: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    cuts = [{"type": "Digits", "individual_digits": True}, byte_level]
    document = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": tokens[i], **flags} for i, kind in enumerate(types) if kind == 3],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {piece: i for i, piece in enumerate(tokens)}, "merges": metadata["tokenizer.ggml.merges"],
        },
    }  # fmt: skip
    path = tmp_path_factory.mktemp("published") / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (path.parent / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def published(published_file: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(published_file))


def plain_bpe(metadata: dict[str, Any]) -> Any:
    """Byte-level BPE as GPT-2 defines it; bytes without a token vanish, as this model's 6 unused ones do."""
    regex = pytest.importorskip("regex")
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {b: chr(b) for b in shown}
    alphabet |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in alphabet)}
    ids = {piece: i for i, piece in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): i for i, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    digits = regex.compile(r"\p{N}|\P{N}+")

    @functools.cache
    def merge(word: str) -> list[int]:
        parts = [alphabet[byte] for byte in word.encode() if alphabet[byte] in ids]
        while len(parts) > 1:
            rank, left, right = min((ranks.get(pair, 1 << 30), *pair) for pair in pairwise(parts))
            if rank == 1 << 30:
                break
            joined: list[str] = []
            for part in parts:
                if joined and part == right and joined[-1] == left:
                    joined[-1] = left + right
                else:
                    joined.append(part)
            parts = joined
        return [ids[part] for part in parts]

    return lambda text: [i for run in digits.findall(text) for word in words.findall(run) for i in merge(word)]


def test_text_becomes_the_published_tokens(tokenizer: Tokenizer, published: Any) -> None:
    for text in varied_texts():
        expected = published(text, add_special_tokens=False, split_special_tokens=True).input_ids
        assert tokenizer.encode(text) == expected, repr(text)


def test_text_with_special_tokens_becomes_the_published_tokens(tokenizer: Tokenizer, published: Any) -> None:
    for text in varied_texts():
        assert tokenizer.encode(text, special=True) == published(text, add_special_tokens=False).input_ids, repr(text)


def test_text_becomes_what_the_definition_of_byte_level_bpe_says(
    tokenizer: Tokenizer, metadata: dict[str, Any]
) -> None:
    encode = plain_bpe(metadata)
    for text in varied_texts():
        assert tokenizer.encode(text) == encode(text), repr(text)


def test_tokens_become_the_published_text(tokenizer: Tokenizer, published: Any) -> None:
    backend = published.backend_tokenizer
    for text in varied_texts():
        ids = tokenizer.encode(text, special=True)
        assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special=False) == backend.decode(ids, skip_special_tokens=False)


def test_whitespace_before_digits_is_cut_as_published_and_not_as_plain_gpt2(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\n\n 1") == [*tokenizer.encode("a\n\n "), *tokenizer.encode("1")]


def test_no_text_becomes_a_special_token_unless_asked(tokenizer: Tokenizer) -> None:
    for name in SPECIAL_NAMES[:3]:
        assert not tokenizer.special_ids & set(tokenizer.encode(f"x{name}y"))
        assert tokenizer.special_ids & set(tokenizer.encode(f"x{name}y", special=True))


def test_the_model_s_ends_and_beginning_are_known(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.prefix) == (1, 2, ())
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.num_tokens == 49152
    assert tokenizer.token_bytes(2) == b"<|im_end|>" and tokenizer.token_bytes(60_000) == b""


def test_the_same_tokens_come_from_the_json_file(tokenizer: Tokenizer, published_file: Path) -> None:
    other = Tokenizer.from_folder(published_file.parent)
    for text in varied_texts(600, seed=3):
        assert other.encode(text) == tokenizer.encode(text)
        assert other.encode(text, special=True) == tokenizer.encode(text, special=True)
    assert [other.token_bytes(i) for i in range(49152)] == [tokenizer.token_bytes(i) for i in range(49152)]
    assert (other.bos_id, other.eos_ids, other.special_ids) == (1, {0, 2}, tokenizer.special_ids)
