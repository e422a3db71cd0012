"""A `tiktoken.model` gives the ids of the tiktoken package, whose format it is."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Native

from quire.text.errors import UnsupportedTokenizer
from quire.text.model_text import ModelText
from quire.text.pieces import BYTE_OF
from quire.text.pretokenizers import cutting
from quire.text.tokenizer import Tokenizer
from tests.text.varied_texts import FRAGMENTS, SPECIAL_NAMES, varied_texts

pytestmark = pytest.mark.pure

# As the rule of Kimi-K2 is written for tiktoken.
EDGE, UPPER, LOWER = (
    r"[^\r\n\p{L}\p{N}]?",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
    (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"),
)
SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
RULE = (
    rf"\p{{Han}}+|{EDGE}{UPPER}*{LOWER}+{SUFFIX}|{EDGE}{UPPER}+{LOWER}*{SUFFIX}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DECLARED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 5: "<|tool_calls_section_begin|>"}


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """Bytes, then pieces in the order in which BPE learns them."""
    native = Native(models.BPE())
    native.pre_tokenizer = cutting("kimi-k2").build()
    alphabet = list(BYTE_OF)
    learnt = trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=alphabet)
    native.train_from_iterator([" ".join(FRAGMENTS[i:]) for i in range(0, len(FRAGMENTS), 3)], learnt)
    pieces = sorted(native.get_vocab().items(), key=lambda item: item[1])
    return {bytes(BYTE_OF[char] for char in piece): place for place, (piece, _) in enumerate(pieces)}


def write(folder: Path, ranks: dict[bytes, int], **config: Any) -> Path:
    lines = [base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    added = {str(len(ranks) + place): {"content": text, "special": place < 5} for place, text in DECLARED.items()}
    given = {
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]",
        "clean_up_tokenization_spaces": False, "chat_template": "{{ messages[0].content }}",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(given | config))
    return folder


def test_ids_and_texts_are_those_of_tiktoken(ranks: dict[bytes, int], tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    special = {text: len(ranks) + place for place, text in DECLARED.items()}
    oracle = tiktoken.Encoding("kimi", pat_str=RULE, mergeable_ranks=ranks, special_tokens=special)
    tokenizer = Tokenizer.from_folder(write(tmp_path, ranks))
    for text in varied_texts(1200):
        if not any(name in text for name in SPECIAL_NAMES):
            ids = oracle.encode(text, disallowed_special=())
            assert tokenizer.encode(text) == ids, repr(text)
            assert tokenizer.decode(ids) == oracle.decode(ids)
    marked = "[BOS]Hi<|im_end|> <|tool_calls_section_begin|>x"
    assert tokenizer.encode(marked, special=True) == oracle.encode(marked, allowed_special="all")


def test_special_tokens_follow_the_others(ranks: dict[bytes, int], tmp_path: Path) -> None:
    text_side = ModelText.from_files(write(tmp_path, ranks), {}, (), is_gguf=False, uses_defaults=False)
    tokenizer = text_side.needed_tokenizer()
    assert tokenizer.num_tokens == len(ranks) + 256 and tokenizer.eos_id == len(ranks) + 1
    assert {len(ranks) + 1, len(ranks) + 2} <= set(text_side.eos_ids)
    assert tokenizer.token_id(f"<|reserved_token_{len(ranks) + 3}|>") == len(ranks) + 3
    assert not {*tokenizer.encode("".join(DECLARED.values()))} & {*range(len(ranks), len(ranks) + 256)}
    assert tokenizer.decode([len(ranks) + 5]) == "" and not text_side.template.is_default


def test_a_tokenizer_json_is_read_first(ranks: dict[bytes, int], tmp_path: Path) -> None:
    native = Native(models.BPE({"a": 0, "b": 1}, []))
    native.pre_tokenizer = pre_tokenizers.Split(Regex("x"), "isolated")
    native.save(str(write(tmp_path, ranks) / "tokenizer.json"))
    assert Tokenizer.from_folder(tmp_path).encode("ab") == [0, 1]


@pytest.mark.parametrize(
    "config, lines, said",
    [
        (
            {"auto_map": {"AutoTokenizer": ["tokenization_other.Tokens", None]}},
            None,
            "tokenization_other.*tokenizer.json",
        ),
        ({"auto_map": None}, None, "names None"),
        ({"added_tokens_decoder": {"3": {"content": "x"}}}, None, "the id 3"),
        ({}, b"YQ== 0\nYg==\n", "cannot be read"),
        ({}, b"YQ== 0\nYg== 2\n", "incomplete"),
        ({}, b"", "incomplete"),
    ],
)
def test_an_error_says_what_to_do(
    ranks: dict[bytes, int], tmp_path: Path, config: dict[str, Any], lines: bytes | None, said: str
) -> None:
    write(tmp_path, ranks, **config)
    if lines is not None:
        (tmp_path / "tiktoken.model").write_bytes(lines)
    with pytest.raises(UnsupportedTokenizer, match=said):
        Tokenizer.from_folder(tmp_path)
